"""Is KVM asked again where it could not tell, or not yet?"""

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.actuation.child_guest import guest_of
from vmplace import native
from vmplace.actuation.budget import Budget
from vmplace.actuation.replicator import BUSY, Replicator, replicated


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


class OneSlot:
    """A placement fd of a guest with one slot; no KVM of ours runs here."""

    fd = 3
    is_closed = False

    def info(self) -> Any:
        return SimpleNamespace(slots=[SimpleNamespace(as_id=0, base_gfn=0, npages=8)])

    def statistics(self) -> dict[str, int]:
        return {"replicas": 2}

    def close(self) -> None:
        self.is_closed = True


def test_a_guest_is_let_go_by_whatever_name_it_had_and_goes_by_its_present_one() -> None:
    opened, dropped = [OneSlot(), OneSlot()], []
    replicator = Replicator(
        Budget(None),
        lambda: 0,
        opened=lambda guest, proc: opened[guest.pid],  # type: ignore[arg-type,return-value]
        ask=lambda fd, nodes, gfns, *_: dropped.append((nodes, gfns.tolist())),
    )
    one = guest_of(os.getpid(), 1 << 32, 8)
    first, second = (replace(one, pid=pid, name=f"qemu-{pid}") for pid in (0, 1))
    for guest in (first, second):
        replicator._known(guest)
    # libvirt was away when the copies were made.
    first, second = replace(first, name="db1"), replace(second, name="web")
    assert replicator.release(first) == ("qemu-0: replicas dropped",)
    assert opened[0].is_closed and dropped == [(0, [0])]
    replicator.apply((), {"web": second})
    assert replicator.collapse("web") == ("web: replicas dropped",) and opened[1].is_closed
