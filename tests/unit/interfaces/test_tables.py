"""What people read."""

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.served_agent import asked, served
from vmplace.errors import VmplaceError
from vmplace.interfaces.tables import memory_use_line
from vmplace.model.memory_demand import MemoryUse

LONG = guest("a-guest-with-a-name-of-sixty-characters-that-is-told-in-full")


def printed(folder: Path, *words: str) -> str:
    """Return what a command prints into a pipe, of a guest of which something long is told."""
    agent = World([LONG]).agent()
    agent.run(windows=1)
    with served(agent, folder / "s") as path:
        return asked(path, *words).stdout


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize("words", [("status",), ("why", LONG.name)], ids=" ".join)
@pytest.mark.parametrize("columns", [80, 120])
def test_into_a_pipe_lines_are_as_wide_as_columns_says(
    words: tuple[str, ...], columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(tmp_path, *words)
    assert columns - 40 < widest(text) <= columns
    assert "\x1b" not in text


@pytest.mark.parametrize("columns", [None, "", "wide", "-1"])
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
    # The error is told on stderr, with the hint, by who runs the command.
    assert isinstance(result.exception, VmplaceError)
    assert str(result.exception) in {"no guests", "nothing to move"}
    assert not {"no guests", "no memory to move"} & set(result.stdout.splitlines())


def test_what_is_not_known_of_memory_use_is_a_question_mark() -> None:
    assert memory_use_line(asdict(MemoryUse(60.04, 200.0, 0.6, 100.0, None, None))) == (
        "  sampled: 60.0 DRAM accesses and 200.0 L1 hits a us, LAR 0.60; "
        "a load takes 100 cycles from its own node, ? from others: its vCPUs wait ? cycles a us longer"
    )
