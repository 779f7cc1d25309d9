"""Is every copy that KVM keeps known, so that it can be dropped, whatever KVM refuses meanwhile?"""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.unit.actuation.node_kvm import CopiedGuest, NodeKvm
from vmplace.actuation import replica_drops
from vmplace.actuation.frame_sets import FrameSet


def test_pages_that_are_refused_for_their_node_keep_their_copies_and_can_lose_them() -> None:
    guest = CopiedGuest(64)
    assert guest.window(0, 1).replicated == 64
    # The VMM's cpuset has one node only, and a page is written.
    guest.kvm.mems = 0b1
    guest.kvm.write(5)
    assert guest.window(0, 1).refused == {"node refused": 64}
    assert guest.replicator.copies([guest.guest])["db1"].wait
    # While it waits there is nothing to say of pages that may have copies.
    assert guest.window(0, 1).refused == {}
    guest.drop()
    assert not guest.kvm.copies


@pytest.mark.parametrize("why", ["backing off", "busy", "locked", "no memory", "written"])
def test_pages_that_are_refused_copies_on_one_more_node_keep_the_others_and_can_lose_them(why: str) -> None:
    guest = CopiedGuest(64)
    guest.window(0, 1)
    guest.kvm.refusals = dict.fromkeys(range(64), why)
    assert guest.window(0, 1, 2).refused == {why: 64}
    guest.drop()
    assert not guest.kvm.copies


@pytest.mark.parametrize("why", ["no memslot", "not present", "dirty logging"])
def test_pages_that_have_no_copies_for_sure_are_held_no_more(why: str) -> None:
    guest = CopiedGuest(8)
    guest.window(0, 1)
    guest.kvm.refusals = dict.fromkeys(range(8), why)
    guest.kvm.write(*range(8))
    guest.window(0, 1)
    assert guest.drop() == 0 and not guest.kvm.dropped


def test_of_a_block_the_reason_of_its_first_frame_is_not_that_of_the_others() -> None:
    guest = CopiedGuest(512)
    guest.window(0, 1)
    guest.kvm.write(0)
    guest.kvm.refusals = {0: "not present"} | dict.fromkeys(range(1, 512), "backing off")
    guest.window(0, 1, 2)
    guest.drop()
    assert not guest.kvm.copies


def test_pages_that_keep_their_copies_are_asked_for_until_they_have_all_of_them() -> None:
    guest = CopiedGuest(64, NodeKvm(refusals=dict.fromkeys(range(9), "backing off")))
    guest.window(0, 1)
    guest.kvm.refusals = dict.fromkeys(range(32), "no memory")
    guest.window(0, 1, 2)
    guest.kvm.refusals = {}
    guest.window(0, 1, 2)
    assert guest.kvm.on(2) == 64


def test_a_drop_of_all_copies_drops_those_that_nobody_knows_of_as_well() -> None:
    guest = CopiedGuest(64)
    guest.window(0, 1)
    guest.kvm.copies |= {63: 0b10}
    guest.replicator._known(guest.guest).held.forget(FrameSet.of(np.arange(32, 64, dtype=np.uint64)))
    guest.drop(npages=1, is_all=True)
    assert not guest.kvm.copies


def test_copies_are_dropped_part_by_part_until_an_order_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_drops, "MOST_DROPPED", 16)
    for is_all in (False, True):
        guest, orders = CopiedGuest(64), iter((False, True))
        guest.window(0, 1)
        assert guest.drop(is_stopping=partial(next, orders), is_all=is_all) == 32
        assert guest.kvm.dropped == [16, 16] and set(guest.kvm.copies) == set(range(32, 64))
        # What was not dropped is known to have copies still.
        assert guest.drop() == 32 and not guest.kvm.copies


def test_all_copies_of_a_guest_that_is_let_go_are_dropped_part_by_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_drops, "MOST_DROPPED", 16)
    guest = CopiedGuest(40)
    guest.window(0, 1)
    assert guest.replicator.release(guest.guest).reported
    assert guest.kvm.dropped == [16, 16, 8] and not guest.kvm.copies


def test_drops_of_the_agents_own_put_no_other_frames_in_doubt() -> None:
    guest = CopiedGuest(64)
    guest.window(0, 1)
    for first in (0, 5):
        asked = sum(guest.kvm.asked)
        guest.drop(first, 1)
        assert guest.window(0, 1).replicated == 1 and sum(guest.kvm.asked) == asked + 1
    # A write beside it does, and so does a drop that somebody else asked for.
    for others in (partial(guest.kvm.write, 9), partial(guest.kvm, 3, 0, *ranges_of(9))):
        asked = sum(guest.kvm.asked)
        guest.drop(0, 1)
        others()
        guest.window(0, 1)
        assert sum(guest.kvm.asked) == asked + 64 and len(guest.kvm.copies) == 64


@pytest.mark.parametrize("counts", [(False, True), (True, False), (False, False)])
def test_where_kvm_counts_nothing_for_now_a_drop_ends_and_all_are_in_doubt(
    counts: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = CopiedGuest(64)
    guest.window(0, 1)
    answers, asked = iter(counts), sum(guest.kvm.asked)

    def statistics() -> dict[str, int]:
        if not next(answers, True):
            raise OSError("no memory")
        return guest.kvm.statistics()

    monkeypatch.setattr(guest.slot, "statistics", statistics)
    assert guest.drop(0, 8) == 8
    guest.window(0, 1)
    assert sum(guest.kvm.asked) == asked + 64


def test_a_drop_of_a_page_takes_all_copies_of_a_huge_one_which_are_made_again() -> None:
    guest = CopiedGuest(1024, NodeKvm(is_huge=True))
    guest.window(0, 1)
    guest.drop(5, 1)
    assert set(guest.kvm.copies) == set(range(512, 1024))
    guest.window(0, 1)
    assert len(guest.kvm.copies) == 1024


def test_a_drop_that_fails_in_its_middle_leaves_nothing_unknown() -> None:
    for is_wanted in (False, True):
        guest = CopiedGuest(64)
        guest.window(0, 1)
        guest.kvm.drop_error = OSError("no memory")
        with pytest.raises(OSError, match="no memory"):
            guest.drop()
        guest.kvm.drop_error = None
        assert len(guest.kvm.copies) == 63
        if is_wanted:
            guest.window(0, 1)
            assert len(guest.kvm.copies) == 64
        guest.drop()
        assert not guest.kvm.copies


def ranges_of(gfn: int) -> tuple[Any, ...]:
    """Return a range of one frame, as the ioctl takes it: frame, length, done and status."""
    one = np.array([1], np.int32)
    return np.array([gfn], np.uint64), one, one.copy(), one.copy()
