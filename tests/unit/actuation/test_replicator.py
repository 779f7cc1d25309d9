"""Are copies made, dropped and remembered, by guest, also where KVM would not?"""

import errno
import os
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.actuation.child_guest import guest_of
from tests.unit.actuation.copying_kvm import COPIES, FOUR, HVA, Kvm, OneSlot
from tests.unit.actuation.node_kvm import CopiedGuest
from vmplace.actuation.budget import Budget
from vmplace.actuation.replica_patience import FIRST_NS
from vmplace.actuation.replicator import Dropped, Replicator
from vmplace.actuation.result import Copies
from vmplace.policy.plan import Collapse, Replication
from vmplace.topology.guest import GuestTopology


def a_replicator(kvm: Kvm) -> tuple[Replicator, GuestTopology, OneSlot]:
    """Return a replicator that has one guest, which has copies of four pages."""
    slot, guest = OneSlot(), guest_of(os.getpid(), 1 << 32, 8)
    replicator = Replicator(Budget(None), lambda: 0, opened=lambda *_: slot, ask=kvm)  # type: ignore[arg-type]
    (outcome,), failures = replicator.apply([COPIES], {"db1": guest})
    assert outcome.replicated == 4 and not failures
    return replicator, guest, slot


@pytest.mark.parametrize(("refusal", "waits"), [("not anonymous", True), ("busy", False)])
def test_where_all_copies_are_refused_for_good_the_guest_waits_and_that_is_counted(refusal: str, waits: bool):
    slot, guest, now_ns = OneSlot(), guest_of(os.getpid(), 1 << 32, 8), [0]
    kvm = Kvm(refusal=refusal)
    opened: Any = lambda *_: slot  # noqa: E731
    replicator = Replicator(Budget(None), lambda: now_ns[0], opened=opened, ask=kvm)
    (outcome,), _ = replicator.apply([COPIES], {"db1": guest})
    assert outcome.refused == {refusal: 4}
    assert replicator.copies([guest]) == {"db1": Copies(0, 0, waits)}
    (outcome,), _ = replicator.apply([COPIES], {"db1": guest})
    assert outcome.refused == {f"waiting after {refusal}" if waits else refusal: 4}
    now_ns[0] += FIRST_NS
    assert replicator.copies([guest]) == {"db1": Copies(0, 0, False)}


def test_pages_that_are_refused_beside_others_with_copies_hold_up_nothing():
    replicator, guest, _ = a_replicator(kvm := Kvm())
    kvm.refusal = "not anonymous"
    more = Replication("db1", HVA + np.uint64(4 * 4096), FOUR, (0, 1), "test")
    (outcome,), _ = replicator.apply([more], {"db1": guest})
    assert outcome.refused == {"not anonymous": 4} and not replicator.copies([guest])["db1"].wait


def test_a_collapse_that_signals_cut_short_goes_on():
    kvm = Kvm(pages_a_call=3)
    replicator, _, slot = a_replicator(kvm)
    assert replicator.collapse().reported == ("db1: replicas dropped",) and slot.is_closed
    assert [gfns for nodes, gfns in kvm.dropped if not nodes] == [[0], [3], [6]]


@pytest.mark.parametrize("trouble", [Kvm(pages_a_call=0), Kvm(error=OSError(errno.ENOMEM, "no memory"))])
def test_copies_that_would_not_go_are_tried_again_and_reported(trouble: Kvm):
    kvm = Kvm()
    replicator, guest, slot = a_replicator(kvm)
    kvm.pages_a_call, kvm.error = trouble.pages_a_call, trouble.error
    for drop in (lambda: replicator.release(guest), replicator.collapse, replicator.retry):
        dropped = drop()
        assert not dropped.reported and "db1: its copies are not dropped yet" in dropped.left[0]
    # None are added meanwhile, and the descriptor by which they go stays open.
    assert replicator.apply([COPIES], {"db1": guest})[1] and not slot.is_closed
    kvm.pages_a_call, kvm.error = 8, None
    assert replicator.retry().reported == ("db1: replicas dropped",) and slot.is_closed
    assert replicator.retry() == Dropped()


def test_copies_of_a_dead_vm_are_nobodys_to_drop():
    kvm = Kvm()
    replicator, _, slot = a_replicator(kvm)
    kvm.error = OSError(errno.ENOMEM, "no memory")
    assert replicator.collapse().left
    kvm.error = OSError(errno.EIO, "dead")
    assert replicator.retry() == Dropped() and slot.is_closed


def test_the_end_closes_the_descriptor_with_which_kvm_drops_what_is_left():
    kvm = Kvm()
    replicator, _, slot = a_replicator(kvm)
    kvm.error = OSError(errno.ENOMEM, "no memory")
    assert replicator.close().left and slot.is_closed


def test_pages_whose_copies_would_not_go_are_still_known_to_have_some():
    kvm = Kvm()
    replicator, guest, _ = a_replicator(kvm)
    kvm.error = OSError(errno.ENOMEM, "no memory")
    unwanted = Collapse("db1", HVA, FOUR, "test")
    with pytest.raises(OSError, match="no memory"):
        replicator.drop(unwanted, guest)
    kvm.error = None
    assert replicator.drop(unwanted, guest) == 4 and replicator.drop(unwanted, guest) == 0


def test_a_guest_is_let_go_by_whatever_name_it_had_and_goes_by_its_present_one() -> None:
    opened, dropped = [OneSlot(), OneSlot()], list[tuple[int, list[int]]]()
    replicator = Replicator(
        Budget(None),
        lambda: 0,
        opened=lambda guest, proc: opened[guest.pid],  # type: ignore[arg-type,return-value]
        ask=Kvm(dropped=dropped),
    )
    one = guest_of(os.getpid(), 1 << 32, 8)
    first, second = (replace(one, pid=pid, name=f"qemu-{pid}") for pid in (0, 1))
    for guest in (first, second):
        replicator._known(guest)
    # libvirt was away when the copies were made.
    first, second = replace(first, name="db1"), replace(second, name="web")
    assert replicator.release(first).reported == ("qemu-0: replicas dropped",)
    assert opened[0].is_closed and dropped == [(0, [0])]
    replicator.apply((), {"web": second})
    assert replicator.release(second).reported == ("web: replicas dropped",) and opened[1].is_closed


def test_vcpus_that_come_to_one_more_node_have_it_get_copies_as_well():
    kvm = Kvm()
    replicator, guest, _ = a_replicator(kvm)
    more = replace(COPIES, nids=(0, 1, 2))
    for _ in range(2):
        assert not replicator.apply([more], {"db1": guest})[1]
    assert kvm.dropped == [(0b011, [0, 1, 2, 3]), (0b111, [0, 1, 2, 3])]


def test_where_nodes_have_no_roots_for_now_copies_stay_and_the_reason_names_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
):
    replicator, guest, slot = a_replicator(kvm := Kvm())
    info = slot.info()
    for roots, reason in (
        (0b10, "of nodes 0, 1 fewer than two have node roots"),
        (0, "it has no node roots"),
    ):
        info.root_nodes = roots
        monkeypatch.setattr(slot, "info", lambda: info)
        _, (failure,) = replicator.apply([COPIES], {"db1": guest})
        assert failure == f"guest db1: not replicated: {reason}"
    assert all(nodes for nodes, _ in kvm.dropped)


def test_a_plan_with_nothing_to_do_lists_none_of_the_frames():
    npages, kvm = 1 << 20, Kvm()
    slot, guest = OneSlot(npages=npages), guest_of(os.getpid(), 1 << 32, npages)
    opened: Any = lambda *_: slot  # noqa: E731
    replicator = Replicator(Budget(None), lambda: 0, opened=opened, ask=kvm)
    wanted = replace(COPIES, npages=np.array([npages], np.int32))
    (outcome,), _ = replicator.apply([wanted], {"db1": guest})
    assert outcome.replicated == npages
    calls = len(kvm.dropped)
    tracemalloc.start()
    replicator.apply([wanted], {"db1": guest})
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 1 << 20 and len(kvm.dropped) == calls


def test_what_cannot_be_counted_now_is_as_it_was_and_is_not_none() -> None:
    guest = CopiedGuest(8)
    guest.window(0, 1)
    guest.kvm.write(7)
    there = {"db1": Copies(7 * 4096, 4096, False)}
    assert guest.replicator.copies([guest.guest]) == there
    guest.slot.counts = 0
    assert guest.replicator.copies([guest.guest]) == there
    guest.slot.counts, guest.kvm.error = 1 << 20, OSError(errno.EIO, "dead")
    assert guest.replicator.copies([guest.guest]) == {"db1": Copies(0, 4096, False)}


def test_names_are_renewed_and_guests_that_ended_forgotten_without_a_plan() -> None:
    guest = CopiedGuest(8)
    guest.window(0, 1)
    assert list(guest.replicator.copies([replace(guest.guest, name="web")])) == ["web"]
    assert guest.replicator.copies([]) == {} and guest.slot.is_closed
