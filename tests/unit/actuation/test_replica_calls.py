"""Is KVM asked for the ranges that it takes, and what is known of each frame then?"""

from typing import Any

import numpy as np
import pytest

from vmplace import native
from vmplace.actuation.replica_calls import BUSY, Attempt, calls_of


def test_a_page_that_is_busy_is_asked_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_for = {5: 1, 7: 2}

    def replicate(fd: int, nodes: int, gfns: Any, npages: Any, done: Any, status: Any) -> None:
        for at, gfn in enumerate(gfns.tolist()):
            is_busy = busy_for.get(gfn, 0) > 0
            busy_for[gfn] = busy_for.get(gfn, 0) - 1
            done[at], status[at] = (0, BUSY) if is_busy else (1, 0)

    monkeypatch.setattr(native, "placement_replicate", replicate)
    attempt = Attempt(3, 0b11, np.array([5, 6, 7], np.uint64))
    attempt.run()
    assert attempt.done.tolist() == [5, 6] and attempt.refused() == {"busy": 1}


def test_of_a_block_done_in_part_each_frame_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """KVM refuses frame 700 of a block of small pages, and a huge page as a whole."""
    asked: list[int] = []

    def replicate(fd: int, nodes: int, gfns: Any, npages: Any, done: Any, status: Any) -> None:
        for at, (gfn, count) in enumerate(zip(gfns.tolist(), npages.tolist(), strict=True)):
            asked.append(count)
            refused = count if gfn >= 1024 else gfn <= 700 < gfn + count
            done[at], status[at] = count - refused, 9 if refused else 0

    monkeypatch.setattr(native, "placement_replicate", replicate)
    attempt = Attempt(3, 0b11, np.arange(1536, dtype=np.uint64))
    attempt.run()
    assert attempt.done.tolist() == [gfn for gfn in range(1024) if gfn != 700]
    assert attempt.refused() == {"backing off": 513} and asked == [512] * 3 + [1] * 512


def test_of_ranges_that_a_signal_cut_short_or_left_out_no_reason_is_made_up() -> None:
    """KVM has no status for these: it tells how many ranges it came to."""

    def replicate(fd: int, nodes: int, gfns: Any, npages: Any, done: Any, status: Any) -> None:
        status[:] = 0
        done[:1] = 1

    attempt = Attempt(3, 0b11, np.array([5, 7, 9], np.uint64), replicate)
    attempt.run()
    assert attempt.done.tolist() == [5] and attempt.refused() == {"interrupted": 2}


@pytest.mark.parametrize(
    ("npages", "calls"),
    [
        ([], []),
        ([1] * 5, [5]),
        ([1] * 3000, [1024, 1024, 952]),
        ([512] * 20, [8, 8, 4]),
        # Whole blocks among single frames must not make a call of each few of these.
        ([1] * 400 + [512] + [1] * 400, [801]),
        ([512] * 7 + [1] * 600, [519, 88]),
    ],
)
def test_calls_are_limited_by_what_there_is_to_copy(npages: list[int], calls: list[int]) -> None:
    parts = calls_of(np.array(npages, np.int32))
    assert [part.stop - part.start for part in parts] == calls
    assert [index for part in parts for index in range(part.start, part.stop)] == list(range(len(npages)))
