"""Is each command that a page names there, with its options?  vmplace's, the lab's and make's."""

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from lab.commands import lab
from tests.unit.test_prose import PAGES, ROOT, name
from vmplace.interfaces.cli import COMMANDS, cli
from vmplace.simulate.source_views import SOURCES

CODE = re.compile(r"^ {4,}([^\n]*)$|`([^`]+)`", re.M)
COMMAND = re.compile(r"(?:^|[\s|;/(])(vmplace(?:-lab)? [a-z][^#|;>`\n]*)")
MAKE = re.compile(r"(?:^|[\s(])make ([a-z][a-z-]*)")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
OTHERS = {"localmodconfig", "oldconfig", "olddefconfig", "install"}
"""Targets of other Makefiles, the kernel's among them."""
WORD = re.compile(r"[a-z][a-z-]*")


def code(path: Path) -> list[str]:
    """Return a page's code without comments: each line of a block, each span."""
    found = (block or " ".join(span.split()) for block, span in CODE.findall(path.read_text()))
    return [re.split(r"(?:^|\s)# ", line)[0] for line in found]


def wrong(line: str) -> str | None:
    """Return what of a command line is not there, or None."""
    program, *words = shlex.split(line, posix=True)
    command: click.Command = lab if program == "vmplace-lab" else cli
    while words and isinstance(command, click.Group):
        if not WORD.fullmatch(words[0]):
            return None
        if command is cli and words[0] == "lab":
            found: click.Command | None = lab
        elif command is cli and words[0] not in COMMANDS:
            found = None
        else:
            found = command.get_command(click.Context(command), words[0])
        if found is None:
            return words[0]
        command, words = found, words[1:]
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    return next(
        (w for w in words if w.startswith("-") and w.partition("=")[0] not in known and w != "-"), None
    )


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_are_there_with_their_options(path: Path) -> None:
    named = [match for line in code(path) for match in COMMAND.findall(line)]
    lines = [re.sub(r"[\[\]…]|[),]+$", " ", line).strip() for line in named]
    assert {line: what for line in lines if (what := wrong(line))} == {}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_targets_of_make_are_there(path: Path) -> None:
    named = {target for line in code(path) for target in MAKE.findall(line)}
    assert named - TARGETS - OTHERS == set()


def test_what_is_not_there_would_be_found() -> None:
    assert wrong("vmplace policy show db1") == "show" and wrong("vmplace shwo") == "shwo"
    assert wrong("vmplace status --jsn") == "--jsn" and wrong("vmplace policy explain db1 --json") is None
    assert {"test-unit", "deb"} <= TARGETS and "tset" not in TARGETS


def test_the_page_of_the_simulator_names_each_source_and_no_other() -> None:
    line = re.search(r"^Sources: .*?\n\n", (ROOT / "docs/simulate.md").read_text(), re.M | re.S)
    assert line is not None
    named = {word for word in re.findall(r"`([a-z+-]+)`", line[0]) if not word.startswith("agent")}
    assert named == set(SOURCES)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_environments_that_pages_make_in_a_checkout_are_ignored_and_no_source_is() -> None:
    lines = [line for path in PAGES for line in code(path)]
    made = {match for line in lines for match in re.findall(r"python3 -m venv ([\w.-]+)(?= |$)", line)}
    asked = ["git", "check-ignore", "--no-index", *(f"{one}/bin/python" for one in sorted(made))]
    ignored = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    assert made and {line.partition("/")[0] for line in ignored} == made
    asked = ["git", "check-ignore", "--no-index", "vmplace/fleet/views.py", "tests/fleet/test_sweep.py"]
    assert subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).stdout == b""
