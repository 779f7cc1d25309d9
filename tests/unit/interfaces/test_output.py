"""No output, argument or file of a person ends a command with a traceback: it is said in a line."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.served_agent import asked, served
from tests.unit.nobody import holds_for_nobody, needs_nobody
from vmplace.errors import VmplaceError
from vmplace.interfaces.cli import cli
from vmplace.interfaces.error_lines import error_line

ROOT = Path(__file__).parents[3]
ENTRY = "from vmplace.interfaces.entry import main; main()"
NAME = "db\u00e9\u2603"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def agent_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    agent = World([guest(NAME)]).agent()
    agent.run(windows=1)
    with served(agent, tmp_path_factory.mktemp("agent") / "s") as path:
        yield path


def run(path: Path, shell: str, *words: str, **env: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a command by the shell, which redirects what it prints."""
    argv = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-c", ENTRY, *words]
    return subprocess.run(
        argv,
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"VMPLACE_SOCKET": str(path)} | env,
        timeout=120,
    )


@pytest.mark.parametrize("words", [("status",), ("top", "--once")], ids=" ".join)
def test_a_locale_without_a_character_gets_its_number(agent_at: Path, words: tuple[str, ...]):
    done = run(agent_at, "", *words, **ASCII)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii() and rb"db\xe9\u2603" in done.stdout


@pytest.mark.parametrize("shell", [">/dev/full", ">&-"])
@pytest.mark.parametrize("words", [("status",), ("status", "--json"), ("doctor",)], ids=" ".join)
def test_output_that_cannot_be_written_is_said_in_a_line(agent_at: Path, shell: str, words: tuple[str, ...]):
    done = run(agent_at, shell, *words)
    assert done.returncode == 1 and b"output cannot be written: " in done.stderr
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    if "--json" in words:
        assert json.loads(done.stderr)["error"]["cure"]


def test_an_order_is_given_though_nobody_reads_the_answer(agent_at: Path, tmp_path: Path):
    done = run(agent_at, ">&-", "metrics", "write", str(tmp_path / "x"))
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "x").read_text()


@pytest.mark.parametrize("words", [("show",), ("apply",), ("plan",)], ids=" ".join)
def test_a_guest_whose_name_is_no_text_is_not_there(agent_at: Path, words: tuple[str, ...]):
    done = asked(agent_at, *words, "db\udcff")
    assert isinstance(done.exception, VmplaceError) and error_line(done.exception).exit_code == 3
    assert "no guest 'db?'" in str(done.exception)


def test_a_closed_standard_input_is_said_in_a_line(agent_at: Path):
    done = run(agent_at, "<&-", "policy", "validate", "-")
    assert done.returncode == 1 and b"stdin is closed" in done.stderr


@needs_nobody
@pytest.mark.parametrize(
    "words",
    [
        ("status", "--socket", "mine"),
        ("plan", "--socket", "none", "--config", "mine"),
        ("policy", "validate", "mine"),
        ("replay", "mine"),
        ("report", "mine"),
    ],
    ids=" ".join,
)
def test_a_file_that_may_not_be_read_is_no_wrong_usage(tmp_path: Path, words: tuple[str, ...]):
    """Asked from its folder, as folders of tests are for their user alone."""
    (tmp_path / "mine").touch(mode=0o600)
    tmp_path.chmod(0o755)

    def is_denied() -> bool:
        done = CliRunner().invoke(cli, words)
        said = str(done.exception)
        return isinstance(done.exception, VmplaceError) and ("Permission denied" in said or "may not" in said)

    with contextlib.chdir(tmp_path):
        assert holds_for_nobody(is_denied)
