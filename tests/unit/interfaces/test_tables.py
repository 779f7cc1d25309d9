"""What people read."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.served_agent import asked, served
from vmplace.errors import VmplaceError
from vmplace.interfaces.tables import memory_use_line, print_status
from vmplace.interfaces.why_tables import print_decisions
from vmplace.model.memory_demand import MemoryUse

LONG = guest("a-guest-with-a-name-of-sixty-characters-that-is-told-in-full")


def printed(folder: Path, *words: str) -> str:
    """Return what a command prints into a pipe, of a guest of which something long is shown."""
    agent = World([LONG]).agent()
    agent.run(windows=1)
    with served(agent, folder / "s") as path:
        return asked(path, *words).stdout


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize(
    ("words", "columns", "least"),
    [(("status",), 80, 40), (("status",), 120, 80), (("why", LONG.name), 60, 40)],
)
def test_into_a_pipe_lines_are_as_wide_as_columns_says(
    words: tuple[str, ...], columns: int, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(tmp_path, *words)
    assert least < widest(text) <= columns
    assert "\x1b" not in text


def test_a_decision_is_a_line_for_what_was_moved_and_one_for_each_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = {"moved": 300, "already": 0, "busy": 0, "pinned": 0, "gone": 0, "vetoed": 18, "left": 0}
    decision = {
        "unix_s": 0.0, "window": 4, "planned_bytes": 318 * 4096, "outcome": done | {"refused": {}},
        "reasons": ["to node 0", "copies: " + "nodes 0 and 1 only read them, and what follows is long " * 2],
    }  # fmt: skip
    print_decisions({"decisions": [decision], "trial": None, "problem": None, "notes": []})
    lines = [line[18:].rstrip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines[0] == "1.2 MiB moved of 1.2" and lines[1] == "- to node 0"
    assert lines[2].startswith("- copies: nodes 0 and 1") and not lines[3].startswith("-")
    assert "- not moved, pages: vetoed 18" in lines


def test_of_many_reasons_status_prints_one_and_where_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status = json.loads(printed(tmp_path, "status", "--json"))
    (of_guest,) = status["guests"].values()
    status["guests"] = {
        "db 1;x": of_guest | {"problem": None, "reasons": ["to node 0", "to node 1", "copies"]}
    }
    print_status(status)
    # A name is the guest's own to choose, and people paste commands.
    assert "db 1;x: to node 0; and 2 more: vmplace why 'db 1;x'" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("counted", "row"), [(0.25, "0.00     0.25"), (None, "0.00")])
def test_status_tells_the_lar_by_counters_from_that_by_pages(
    counted: float | None, row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = json.loads(printed(tmp_path, "status", "--json"))
    (of_guest,) = status["guests"].values()
    status["guests"] = {"db1": of_guest | {"counted_lar": counted}}
    print_status(status)
    text = capsys.readouterr().out
    assert row in text and ("counters" in text) == (counted is not None)


@pytest.mark.parametrize("columns", [None, "", "wide", "-1", "0"])
def test_into_a_pipe_lines_are_not_cut_where_nobody_asks_for_it(
    columns: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert 120 < widest(printed(tmp_path, "status")) <= 200


@pytest.mark.parametrize("words", [("status",), ("plan",)], ids=" ".join)
def test_that_there_is_nothing_is_said_once(words: tuple[str, ...], tmp_path: Path) -> None:
    agent = World([]).agent()
    agent.run(windows=1)
    with served(agent, tmp_path / "s") as path:
        result = asked(path, *words)
    # What runs the command prints the error on stderr, with the hint.
    assert isinstance(result.exception, VmplaceError)
    assert str(result.exception) in {"no guests", "nothing to move"}
    assert not {"no guests", "no memory to move"} & set(result.stdout.splitlines())


def test_what_is_not_known_of_memory_use_is_a_question_mark() -> None:
    assert memory_use_line(asdict(MemoryUse(60.04, 200.0, 0.6, 100.0, None, None))) == (
        "  sampled: 60.0 DRAM accesses and 200.0 L1 hits a us, LAR by samples 0.60; "
        "a load takes 100 cycles from its own node, ? from others: its vCPUs wait ? cycles a us longer"
    )
