"""Is every copy that KVM keeps known, so that it can be dropped, whatever KVM refuses meanwhile?"""

import pytest

from tests.unit.actuation.node_kvm import CopiedGuest, NodeKvm


def test_pages_that_are_refused_for_their_node_keep_their_copies_and_can_lose_them() -> None:
    guest = CopiedGuest(64)
    assert guest.window(0, 1).replicated == 64
    # The VMM's cpuset has one node only, and a page is written.
    guest.kvm.mems = 0b1
    guest.kvm.write(5)
    assert guest.window(0, 1).refused == {"node refused": 64}
    assert guest.replicator.copies()["db1"].wait
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
