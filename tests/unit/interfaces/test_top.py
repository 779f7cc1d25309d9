"""The live view follows the agent, sorts, and ends; on paper it is one picture."""

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tests.unit.interfaces.captured_world import captured_agent
from tests.unit.interfaces.served_agent import asked, served
from vmplace.interfaces.client import NoAgentError
from vmplace.interfaces.top_app import TopApp
from vmplace.interfaces.top_frame import frame

MIB = 1 << 20


@pytest.fixture(scope="module")
def status() -> Any:
    return msgspec.to_builtins(captured_agent("16amd64-4n8c").status, str_keys=True)


def with_moved(status: Any, size_bytes: int) -> Any:
    later = copy.deepcopy(status)
    later["moved_bytes"] += size_bytes
    later["guests"]["db1"]["moved_bytes"] += size_bytes
    return later


def played(app: TopApp, play: Callable[[Pilot[None]], Any]) -> None:
    async def run() -> None:
        async with app.run_test(size=(100, 30)) as pilot:
            await play(pilot)

    asyncio.run(run())


def names(app: TopApp) -> list[str]:
    table = app.query_one("#guests", DataTable)
    return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]


def head(app: TopApp) -> str:
    shown = app.query_one("#head", Static)
    return str(shown.render())


def test_a_rate_is_what_moved_between_two_looks(status: Any):
    later = frame(with_moved(status, 100 * 10**6), status, 2.0)
    assert "moving 50.0 of 100,000 MB/s" in later.head[1]
    assert "moved 112 MiB in all" in frame(status).head[1]


def test_notes_are_counted_in_a_line_that_is_whole_at_80_columns(status: Any):
    noted = {**status, "notes": ["one", "two", "three"], "source": "kvm+ibs+hints", "windows": 123456}
    assert "3 notes, shown by vmplace status" in frame(noted).head
    assert max(map(len, frame(noted).head)) <= 80
    assert len(frame(status).head) == 2


@pytest.mark.parametrize(
    ("order", "first"),
    [("name", "build-agent-with-a-long-name-07"), ("lar", "db1"), ("memory", "db1"), ("moved", "db1")],
)
def test_guests_are_sorted_worst_or_largest_first(status: Any, order: str, first: str):
    assert frame(status, order=order).rows[0][0] == first


def test_a_guest_of_which_nothing_is_known_is_question_marks_and_last(status: Any):
    new = copy.deepcopy(status)
    new["guests"]["db1"] |= {"estimated_lar": None, "pages_by_node": None, "state": "new"}
    assert frame(new, order="lar").rows[-1] == ("db1", "new", "?", "?", "?", "?", "?", "64", "0")


def test_of_many_nodes_the_fullest_are_named(status: Any):
    many = copy.deepcopy(status)
    many["nids"] = list(range(8))
    many["guests"]["db1"]["pages_by_node"] = {str(nid): (nid + 1) << 18 for nid in range(8)}
    row = next(row for row in frame(many).rows if row[0] == "db1")
    assert row[3] == "7:8.0 6:7.0 5:6.0 +5"


def test_keys_sort_and_q_ends(status: Any):
    app = TopApp(lambda: status, status, 60, "name")

    async def play(pilot: Pilot[None]) -> None:
        before = names(app)
        await pilot.press("l")
        assert names(app) != before and names(app)[0] == "db1"
        await pilot.press("n")
        assert names(app) == before
        await pilot.press("q")

    played(app, play)
    assert app.return_code == 0


def test_it_follows_the_agent_and_keeps_the_last_picture_when_that_is_away(status: Any):
    answers = [with_moved(status, 500 * MIB)]

    def look() -> Any:
        if answers:
            return answers.pop(0)
        raise NoAgentError("no agent at /run/x", hint="systemctl start vmplace")

    app = TopApp(look, status, 0.05, "name")

    async def play(pilot: Pilot[None]) -> None:
        for _ in range(200):
            await pilot.pause(0.05)
            if "no agent at" in head(app):
                break
        assert "systemctl start vmplace" in head(app)
        table = app.query_one("#guests", DataTable)
        row = next(row for at in range(4) if (row := table.get_row_at(at))[0] == "db1")
        assert row[7] == "564"

    played(app, play)


def test_what_goes_to_a_pipe_is_one_picture(tmp_path: Path):
    with served(captured_agent("16amd64-4n8c"), tmp_path / "s") as path:
        assert asked(path, "top").output == asked(path, "top", "--once").output != ""


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setitem(sys.modules, "vmplace.interfaces.top_app", None)
    monkeypatch.setattr("vmplace.interfaces.top_command.is_terminal", lambda: True)
    with served(captured_agent("16amd64-4n8c"), tmp_path / "s") as path:
        result = asked(path, "top")
    assert "python3-textual" in str(getattr(result.exception, "hint", result.output))
