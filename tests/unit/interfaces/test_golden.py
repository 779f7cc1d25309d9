"""What people read at 80 columns, on captured hosts: as it was looked through, and without a broken word.

After a change on purpose: GOLDEN=write pytest tests/unit/interfaces/test_golden.py, and read the diff.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.interfaces.captured_world import HOSTS, captured_agent, fixed
from tests.unit.interfaces.served_agent import asked, served
from vmplace.agent.loop import Agent
from vmplace.interfaces.cli import cli
from vmplace.interfaces.doctor import print_capabilities
from vmplace.topology import capabilities
from vmplace.topology.capability import Capability, Roots
from vmplace.topology.counter_capabilities import probe_cycle_counters

GOLDEN = Path(__file__).parents[2] / "data/golden"
CAPTURED = ("16amd64-4n8c", "12amd64-3n6c-sparse", "24amd64-3n4c-cxl")
WORDS = (
    ("status",), ("show", "db1"), ("why", "db1"), ("plan",), ("fit", "2:8192"), ("advise", "2:64"),
    ("top", "--once"), ("top", "--once", "--sort", "lar"),
)  # fmt: skip
STYLE = re.compile(r"\x1b\[[0-9;]*m")
CLOCK = re.compile(r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}\b")
LONG_NAMES = {"build-agent-with-…"}
"""Are cut in tables, and shown in full elsewhere."""
OWN = {"yes", "no", "?", "->", "Needed", "Also", "there", "Better", "with"}
VERDICT = "The agent cannot work here; it lacks: KVM, access sampling, pagemap."
STATUS = "CapEff:\t0000000000000000\n"


def printed(host: str, words: tuple[str, ...], folder: Path, columns: int) -> str:
    """Return what a command prints on a terminal of so many columns."""
    with pytest.MonkeyPatch.context() as patch, fixed(patch):
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TTY_COMPATIBLE", "1")
        patch.setenv("NO_COLOR", "1")
        with served(AGENTS[host], folder / "s") as path:
            plain = STYLE.sub("", asked(path, *words).stdout)
    return CLOCK.sub("HH:MM:SS", plain)


@pytest.fixture(scope="module", autouse=True)
def agents() -> None:
    with pytest.MonkeyPatch.context() as patch, fixed(patch):
        AGENTS.update({host: captured_agent(host) for host in CAPTURED})


AGENTS: dict[str, Agent] = {}


def hold(name: str, text: str) -> None:
    """Compare a text with the one that was looked through, or write it down."""
    file = GOLDEN / f"{name}.txt"
    plain = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    if os.environ.get("GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(plain)
    assert plain == file.read_text(), "GOLDEN=write, and read the diff"


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
@pytest.mark.parametrize("host", CAPTURED)
def test_it_reads_as_it_was_looked_through(host: str, words: tuple[str, ...], tmp_path: Path):
    hold(
        f"{host}/{'-'.join(word.strip('-').replace(':', 'x') for word in words)}",
        printed(host, words, tmp_path, 80),
    )


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
@pytest.mark.parametrize("host", CAPTURED)
def test_no_line_is_too_long_and_no_word_is_broken(host: str, words: tuple[str, ...], tmp_path: Path):
    narrow, wide = (printed(host, words, tmp_path, columns) for columns in (80, 300))
    assert max(map(len, narrow.splitlines()), default=0) <= 80
    broken = set(narrow.split()) - set(wide.split()) - LONG_NAMES
    assert [word for word in broken if any(map(str.isalnum, word))] == []


def test_the_demo_reads_as_it_was_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("matplotlib")
    for key, value in {"COLUMNS": "80", "TTY_COMPATIBLE": "1", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(key, value)
    done = CliRunner().invoke(cli, ["demo", "--no-open", "--out", str(tmp_path / "demo.html")])
    assert done.exit_code == 0, done.output
    table, report = STYLE.sub("", done.stdout).rstrip("\n").rsplit("\n", 1)
    assert report == f"report: {(tmp_path / 'demo.html').as_uri()}"
    assert max(map(len, table.splitlines())) <= 80
    hold("demo", table)


@pytest.mark.parametrize("host", CAPTURED)
def test_doctor_reads_as_it_was_looked_through(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(STATUS)
    roots = Roots(tmp_path / "proc", HOSTS / host, tmp_path / "dev", tmp_path / "run", tmp_path)
    # These ask the machine that runs the test, wherever the trees are.
    here = [capabilities.probe_native, capabilities.probe_move_permission, probe_cycle_counters]
    probes = [probe for probe in capabilities.PROBES if probe not in here]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = [at_home(probe(roots), host, tmp_path) for probe in probes]
    print_capabilities(sorted(found, key=lambda one: not one.needed))
    reported = capsys.readouterr().out
    assert max(map(len, reported.splitlines())) <= 80
    known = " ".join(text for one in found for text in (one.name, one.why, one.cure or ""))
    assert set(reported.split()) <= OWN | {*known.split(), *VERDICT.split()}
    hold(f"{host}/doctor", reported)


def at_home(one: Capability, host: str, folder: Path) -> Capability:
    """Return what a probe said, of the paths that a host has."""

    def put(text: str) -> str:
        return text.replace(str(HOSTS / host), "/sys").replace(str(folder), "")

    return replace(one, why=put(one.why), cure=one.cure and put(one.cure))
