"""Which pages had copies at decisions comes back from a recording, and is written where it changed."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.unit.sampling.test_recording import HOST, forged
from vmplace.errors import RecordingError
from vmplace.sampling import recorded_copies
from vmplace.sampling.page_set import NO_PAGES, PageSet
from vmplace.sampling.recorded_copies import KnownCopies, RecordedPlan
from vmplace.sampling.recording import Recorder, iter_recording
from vmplace.sampling.recording_frames import PlanFrame, PlannedGuest

UNKNOWN: KnownCopies = (None, None)


def plan(*names: str) -> PlanFrame:
    return PlanFrame(1e9, 1.0, None, 0.25, True, tuple(PlannedGuest(name, {}) for name in names), 0)


def read_back(path: Path, plans: list[Mapping[str, KnownCopies]]) -> list[Mapping[str, KnownCopies]]:
    with Recorder(path, HOST, overwrite=True) as recorder:
        for copies in plans:
            recorder.tell(plan(*copies), copies)
    return [event.copies for event in iter_recording(path) if isinstance(event, RecordedPlan)]


def are_same(some: KnownCopies, others: KnownCopies) -> bool:
    return all(a is b or (a is not None and a.is_same(b)) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_what_is_known_of_copies_comes_back_plan_by_plan(tmp_path: Path, seed: int) -> None:
    chance = np.random.default_rng(seed)
    sets = [None, NO_PAGES, *(PageSet.of(chance.integers(0, 5000, 700)) for _ in range(3))]
    plans: list[Mapping[str, KnownCopies]] = [
        {
            name: (sets[chance.integers(5)], sets[chance.integers(5)])
            for name in ("a", "b", "c")
            if chance.random() < 0.7
        }
        for _ in range(20)
    ]
    read = read_back(tmp_path / "x.vmptrace", plans)
    assert [one.keys() for one in read] == [one.keys() for one in plans]
    for one, other in zip(read, plans, strict=True):
        assert all(are_same(one[name], other[name]) for name in one)


def test_it_is_written_once_and_again_where_it_changed(tmp_path: Path) -> None:
    every = PageSet.of_runs(np.array([1 << 32]), np.array([64 << 18]))
    sizes = []
    for count in (1, 2, 50):
        read_back(tmp_path / "x.vmptrace", [{"a": (every, NO_PAGES)}] * count)
        sizes.append((tmp_path / "x.vmptrace").stat().st_size)
    # 64 GiB of copies, and a decision of a guest without any.
    assert sizes[0] < 200_000 and sizes[2] - sizes[1] == 48 * (sizes[1] - sizes[0])
    assert sizes[1] - sizes[0] < 1000


@pytest.mark.parametrize(
    ("copied", "refused", "body"),
    [(1, None, b""), (1 << 60, None, b""), (-2, None, b""), (2, None, b"x" * 143), (1, 1, b"\0" * 144)],
)
def test_copies_that_cannot_be_are_refused(
    tmp_path: Path, copied: int | None, refused: int | None, body: bytes
) -> None:
    head = {"kind": "plan", "now_ns": 1e9, "window_s": 1.0, "budget_bytes": None, "replica_ratio": 0.25}
    one: dict[str, object] = {"name": "a", "settings": {}, "copied_blocks": copied, "refused_blocks": refused}
    head |= {"huge_replicas": True, "guests": [one], "digest": 0}
    path = forged(tmp_path / "x.vmptrace", json.dumps(head).encode(), zlib.compress(body) if body else b"")
    with pytest.raises(RecordingError):
        list(iter_recording(path))


def test_a_recording_of_before_tells_nothing_of_copies(tmp_path: Path) -> None:
    with Recorder(tmp_path / "x.vmptrace", HOST) as recorder:
        recorder.tell(plan("a"))
    (read,) = (event for event in iter_recording(tmp_path / "x.vmptrace") if isinstance(event, PlanFrame))
    assert isinstance(read, RecordedPlan) and read.copies == {"a": UNKNOWN}


def test_copies_that_nobody_could_read_back_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_copies, "MOST_BODY_BYTES", 72 * 2)
    with pytest.raises(RecordingError, match="too many"):
        read_back(tmp_path / "x.vmptrace", [{"a": (PageSet.of([1, 600, 1200]), None)}])
