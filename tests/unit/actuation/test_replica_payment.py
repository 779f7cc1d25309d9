"""Are all copies known that KVM made, and is each paid for, whatever failed?"""

import os
from dataclasses import replace
from typing import Any

import numpy as np

from tests.unit.actuation.child_guest import guest_of
from tests.unit.actuation.copying_kvm import COPIES, HVA, CountingKvm, OneSlot
from tests.unit.actuation.node_kvm import CopiedGuest, NodeKvm
from vmplace.actuation.budget import Budget
from vmplace.actuation.replica_payment import Payment
from vmplace.actuation.replicator import Replicator, joined
from vmplace.policy.plan import Collapse


def test_copies_that_were_made_before_a_call_failed_are_noted_paid_for_and_dropped() -> None:
    """Of 8,192 frames the first call copies 4,096; of those of the second, which fails, nobody knows."""
    kvm = CountingKvm(fails_at=2)
    slot = OneSlot(npages=8192, kvm=kvm)
    guest, budget = guest_of(os.getpid(), 1 << 32, 8192), Budget(100e6, burst_s=1)
    replicator = Replicator(budget, lambda: 0, opened=lambda *_: slot, ask=kvm)  # type: ignore[arg-type]
    wanted = replace(COPIES, npages=np.array([8192], np.int32))
    (outcome,), (failure,) = replicator.apply([wanted], {"db1": guest})
    assert outcome.replicated == 4096 and "db1: not all was replicated: [Errno 14] made up" in failure
    assert budget.available_bytes(0) == 100e6 - 4097 * 4096
    assert replicator.drop(Collapse("db1", HVA, wanted.npages, "test"), guest) >= 4097
    assert not kvm.copied


def test_what_was_not_known_after_an_error_is_asked_for_again() -> None:
    kvm, guest = CountingKvm(fails_at=1), guest_of(os.getpid(), 1 << 32, 8)
    slot = OneSlot(kvm=kvm)
    replicator = Replicator(Budget(None), lambda: 0, opened=lambda *_: slot, ask=kvm)  # type: ignore[arg-type]
    assert replicator.apply([COPIES], {"db1": guest})[1] and kvm.copied == {0}
    assert not replicator.apply([COPIES], {"db1": guest})[1] and kvm.copied == {0, 1, 2, 3}


def test_copies_that_were_lost_and_are_made_again_are_paid_for_and_those_that_are_there_are_not() -> None:
    kvm, guest, budget = CountingKvm(), guest_of(os.getpid(), 1 << 32, 8), Budget(4096 * 512)
    opened: Any = lambda *_: OneSlot(kvm=kvm)  # noqa: E731
    replicator, paid = Replicator(budget, lambda: 0, opened=opened, ask=kvm), []
    for lost in ((), (), (2,), (1, 3)):
        kvm.lose(*lost)
        replicator.apply([COPIES], {"db1": guest})
        paid.append(512 - budget.available_bytes(0) // 4096)
    assert paid == [4, 4, 5, 7] and kvm.copied == {0, 1, 2, 3}


def test_where_kvm_cannot_be_asked_all_that_it_may_have_copied_is_paid_for_once() -> None:
    kvm, guest, budget = CountingKvm(fails_at=2), guest_of(os.getpid(), 1 << 32, 8), Budget(4096 * 512)
    slot = OneSlot(kvm=kvm)
    replicator = Replicator(budget, lambda: 0, opened=lambda *_: slot, ask=kvm)  # type: ignore[arg-type]
    slot.counts = 1
    replicator.apply([COPIES], {"db1": guest})
    assert budget.available_bytes(0) == 508 * 4096
    slot.counts = 1 << 20
    more = replace(COPIES, npages=np.array([8], np.int32))
    replicator.apply([more], {"db1": guest})
    assert budget.available_bytes(0) == 507 * 4096 and len(kvm.copied) == 5


def test_copies_on_one_more_node_are_paid_for_though_kvm_counts_no_new_page() -> None:
    payment, due = Payment(), []
    for made, copies in ((10, 10), (14, 14), (14, 18), (14, 12), (15, 13)):
        counted = {"replicated_pages": made, "replica_copies": copies}
        due.append(payment.due_bytes(counted, 2 * 4096) // 4096)
    assert due == [0, 8, 4, 0, 2]


def test_what_was_copied_is_known_though_the_order_to_stop_fails() -> None:
    kvm, guest = CountingKvm(refused={0}), guest_of(os.getpid(), 1 << 32, 8)
    slot = OneSlot(kvm=kvm)
    replicator = Replicator(Budget(None), lambda: 0, opened=lambda *_: slot, ask=kvm)  # type: ignore[arg-type]
    orders = iter((False,))
    assert replicator.apply([COPIES], {"db1": guest}, lambda: next(orders))[1]
    assert kvm.copied and replicator.drop(Collapse("db1", HVA, COPIES.npages, "test"), guest) == 3


def test_pages_that_lie_on_none_of_the_nodes_are_reckoned_with_a_copy_on_each() -> None:
    limit = 64 * 4096
    for home, from_pages, pages in ((2, {2: 256}, 32), (0, {0: 256}, 64), (0, {}, 64)):
        guest = CopiedGuest(256, NodeKvm(home=home))
        for _ in range(3):
            guest.window(0, 1, limit_bytes=limit, from_pages=from_pages)
        assert len(guest.kvm.copies) == pages and guest.kvm.statistics()["replica_copies"] == 64


def test_a_window_spends_what_the_budget_grants_though_pages_lie_elsewhere() -> None:
    guest = CopiedGuest(4096, NodeKvm(home=2), bytes_per_s=1024 * 4096)
    for window in range(1, 4):
        guest.window(0, 1, from_pages={2: 4096})
        assert guest.kvm.statistics()["replica_copies"] == 1024 * window


def test_where_pages_lie_is_added_up_for_all_ranges_of_a_guest() -> None:
    far, near = (replace(COPIES, from_pages=pages) for pages in ({2: 12.0, 0: 4.0}, {0: 4.0}))
    (both,) = joined([far, near])
    assert both.from_pages == {2: 12.0, 0: 8.0}


def test_a_huge_page_whose_copies_are_more_than_the_budget_holds_gets_them_and_they_are_paid_for() -> None:
    """Three copies of 2 MiB, at 3 MB/s: a page in two seconds, in the long run."""
    guest = CopiedGuest(16 * 512, NodeKvm(is_huge=True), bytes_per_s=3e6)
    for _ in range(21):
        guest.window(0, 1, 2, 3)
    assert 9 * 512 <= len(guest.kvm.copies) <= 11 * 512
    assert guest.kvm.statistics()["replica_copies"] * 4096 <= 21 * 3e6 + 3e6


def test_where_a_limit_leaves_room_for_a_part_of_a_huge_page_none_is_asked_to_wait() -> None:
    guest = CopiedGuest(1024, NodeKvm(is_huge=True))
    for _ in range(3):
        assert guest.window(0, 1, limit_bytes=400 * 4096).refused == {"huge": 1024}
    assert not guest.replicator.copies([guest.guest])["db1"].wait
    # Nobody wants more than a part of it: there is no block that KVM would copy.
    guest = CopiedGuest(400, NodeKvm(is_huge=True))
    guest.window(0, 1)
    assert guest.replicator.copies([guest.guest])["db1"].wait
