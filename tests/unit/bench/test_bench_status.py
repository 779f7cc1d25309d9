"""What commands print is asked for once next to nothing moves, and shown on the page of results as it was."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import bench_status
from bench.results_page import page
from lab.errors import LabError


def rests(monkeypatch: pytest.MonkeyPatch, moved: list[int]) -> float:
    """Return the seconds after which an agent that has moved so many pages at each poll is at rest."""
    now = [0.0]
    counts = iter(moved)
    monkeypatch.setattr(bench_status, "read_progress", lambda _: (next(counts, moved[-1]), 0))
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    monkeypatch.setattr(bench_status, "time", clock)
    bench_status.await_rest(None)  # type: ignore[arg-type]
    return now[0]


def test_it_waits_until_all_has_moved(monkeypatch: pytest.MonkeyPatch):
    assert rests(monkeypatch, [0, 5_000, 9_000]) == 2 * bench_status.POLL_S + bench_status.QUIET_S


def test_an_agent_that_moves_nothing_or_never_rests_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    for moved in ([0], list(range(0, 10_000_000, 10_000))):
        with pytest.raises(LabError, match="not come to rest"):
            rests(monkeypatch, moved)


def test_lines_are_asked_for_at_80_columns_and_lose_trailing_blanks():
    asked: list[str] = []

    def run(words: str, timeout: float) -> SimpleNamespace:
        asked.append(words)
        return SimpleNamespace(stdout="a  \nb\n")

    assert bench_status.ask(SimpleNamespace(run=run), "status") == "a\nb\n"  # type: ignore[arg-type]
    assert asked == ["COLUMNS=80 vmplace status"]


def test_the_page_shows_what_was_printed(tmp_path: Path):
    machine = {"cpu": "x", "cpus": 2, "memory": "1 kB", "python": "3"}
    record = {"machine": machine, "date": "2026-01-02T00:00:00", "commit": "c" * 40, "load": [0.1]}
    kept = {
        "bench": "status",
        "record": record,
        "failed": {},
        "printed": {"status": "guest mode\ndb1   auto\n"},
    }
    (tmp_path / "status.json").write_text(json.dumps(kept))
    shown = page(tmp_path)
    assert "    $ vmplace status\n    guest mode\n    db1   auto\n\nMachine: x" in shown
    assert "2026-01-02. Commit: cccccccccccc" in shown
