"""Do copies go from nodes that vCPUs left, and stay where these come back?"""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.actuation.copying_kvm import HVA
from tests.unit.actuation.node_kvm import CopiedGuest
from vmplace.actuation import replica_drops
from vmplace.actuation.replica_nodes import MOST_AWAY
from vmplace.policy.plan import Replication


def test_copies_on_a_node_that_vcpus_left_are_dropped_and_made_again_for_the_others_once() -> None:
    guest = CopiedGuest(1024, bytes_per_s=4096 * 1024)
    for _ in range(2):
        guest.window(0, 1, 2)
    assert guest.kvm.on(2) == guest.kvm.on(1) == 1024
    for _ in range(MOST_AWAY - 1):
        guest.window(0, 1)
    assert guest.kvm.on(2) == 1024 and not guest.kvm.dropped
    guest.window(0, 1)
    assert (guest.kvm.on(2), guest.kvm.on(1)) == (0, 1024)
    # What is made again is paid for.
    assert guest.budget.available_bytes(guest.now_ns - 10**9) == 0
    for _ in range(2 * MOST_AWAY):
        guest.window(0, 1)
    assert len(guest.kvm.dropped) == 1 and guest.kvm.made == 2048


def test_vcpus_that_are_away_for_few_plans_keep_their_copies() -> None:
    guest = CopiedGuest(64)
    for _ in range(3):
        guest.window(0, 1, 2)
        for _ in range(MOST_AWAY - 1):
            guest.window(0, 1)
    guest.window(0, 1, 2)
    assert guest.kvm.on(2) == 64 and not guest.kvm.dropped


def test_ranges_for_different_nodes_are_no_reason_to_drop_any() -> None:
    guest, half = CopiedGuest(64), np.array([32], np.int32)
    wanted = [
        Replication("db1", HVA + np.uint64(at * 4096), half, nids, "test")
        for at, nids in ((0, (0, 1)), (32, (1, 2)))
    ]
    for _ in range(2 * MOST_AWAY):
        assert not guest.replicator.apply(wanted, {"db1": guest.guest})[1]
    assert not guest.kvm.dropped and len(guest.kvm.copies) == 64


def test_a_guest_that_waits_with_copies_keeps_those_that_it_has() -> None:
    guest = CopiedGuest(64)
    guest.window(0, 1, 2)
    guest.replicator._known(guest.guest).patience._until_ns = 1 << 62
    for _ in range(2 * MOST_AWAY):
        guest.window(0, 1)
    assert guest.kvm.on(2) == 64


def test_an_order_ends_the_drop_and_the_next_plan_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_drops, "MOST_DROPPED", 16)
    guest = CopiedGuest(64)
    guest.window(0, 1, 2)
    wanted = Replication("db1", HVA, np.array([64], np.int32), (0, 1), "test")
    for _ in range(MOST_AWAY):
        guest.replicator.apply([wanted], {"db1": guest.guest}, lambda: True)
    assert guest.kvm.on(2) == 48
    guest.window(0, 1)
    assert (guest.kvm.on(2), guest.kvm.on(1)) == (0, 64)


def counts_of_quiet_windows(guest: CopiedGuest) -> tuple[int, int]:
    """Return how many pages KVM dropped and copied, asked for nodes 0 and 1 for a long time."""
    released, made = guest.kvm.released, guest.kvm.made
    for _ in range(3 * MOST_AWAY):
        guest.window(0, 1)
    return guest.kvm.released - released, guest.kvm.made - made


def test_pages_of_memory_that_was_unplugged_drop_no_others_again_and_again() -> None:
    guest = CopiedGuest(1024)
    guest.window(0, 1, 2)
    half = SimpleNamespace(as_id=0, base_gfn=0, npages=512, hva=HVA)
    guest.slot.info = lambda: SimpleNamespace(root_nodes=0b111, slots=[half])  # type: ignore[method-assign]
    for gfn in range(512, 1024):
        del guest.kvm.copies[gfn]
    guest.kvm.released += 512
    # Once, to be made again without node 2.
    assert counts_of_quiet_windows(guest) == (512, 512)


def test_copies_that_were_all_dropped_leave_no_node_that_has_some() -> None:
    guest = CopiedGuest(1024)
    guest.window(0, 1, 2)
    guest.drop(is_all=True)
    assert counts_of_quiet_windows(guest) == (0, 1024)


def test_a_node_for_which_kvm_refused_all_copies_has_none_to_be_dropped() -> None:
    guest = CopiedGuest(1024)
    guest.window(0, 1)
    guest.kvm.mems = 0b011
    guest.window(0, 1, 2)
    assert counts_of_quiet_windows(guest) == (0, 0)
