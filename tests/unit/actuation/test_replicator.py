"""Is KVM asked again where it could not tell, or not yet?"""

from typing import Any

import numpy as np
import pytest

from vmplace import native
from vmplace.actuation.replicator import BUSY, replicated


def test_a_page_that_is_busy_is_asked_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_for = {5: 1, 7: 2}

    def replicate(fd: int, nodes: int, gfns: Any, npages: Any, done: Any, status: Any) -> None:
        for at, gfn in enumerate(gfns.tolist()):
            is_busy = busy_for.get(gfn, 0) > 0
            busy_for[gfn] = busy_for.get(gfn, 0) - 1
            done[at], status[at] = (0, BUSY) if is_busy else (1, 0)

    monkeypatch.setattr(native, "placement_replicate", replicate)
    done, refused = replicated(3, 0b11, np.array([5, 6, 7], np.uint64))
    assert done.tolist() == [5, 6] and refused == {"busy": 1}


def test_of_a_block_done_in_part_each_frame_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """KVM refuses frame 700 of a block of small pages, and a huge page as a whole."""
    asked: list[int] = []

    def replicate(fd: int, nodes: int, gfns: Any, npages: Any, done: Any, status: Any) -> None:
        for at, (gfn, count) in enumerate(zip(gfns.tolist(), npages.tolist(), strict=True)):
            asked.append(count)
            refused = count if gfn >= 1024 else gfn <= 700 < gfn + count
            done[at], status[at] = count - refused, 9 if refused else 0

    monkeypatch.setattr(native, "placement_replicate", replicate)
    done, refused = replicated(3, 0b11, np.arange(1536, dtype=np.uint64))
    assert done.tolist() == [gfn for gfn in range(1024) if gfn != 700]
    assert refused == {"backing off": 513} and asked == [512] * 3 + [1] * 512
