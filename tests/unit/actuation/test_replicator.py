"""Is KVM asked again where it could not tell, or not yet?"""

import errno
import os
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.actuation.child_guest import guest_of
from vmplace import native
from vmplace.actuation.budget import Budget
from vmplace.actuation.replica_calls import BUSY, STATUS, Attempt, calls_of
from vmplace.actuation.replica_patience import FIRST_NS
from vmplace.actuation.replicator import Dropped, Replicator
from vmplace.actuation.result import Copies
from vmplace.policy.plan import Collapse, Replication
from vmplace.topology.guest import GuestTopology


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


class FailingKvm:
    """Makes copies of small pages until call number ``fails_at``, whose first frame it still copies."""

    def __init__(self, fails_at: int) -> None:
        self.left, self.copied = fails_at, set[int]()
        self.dropped: list[int] = []

    def __call__(self, fd: int, nodes: int, gfns: Any, npages: Any, done: Any, status: Any) -> None:
        frames = [range(gfn, gfn + count) for gfn, count in zip(gfns.tolist(), npages.tolist(), strict=True)]
        done[:], status[:] = npages, 0
        if not nodes:
            self.dropped += [gfn for some in frames for gfn in some]
            self.copied -= set(self.dropped)
            return
        self.left -= 1
        if self.left:
            self.copied |= {gfn for some in frames for gfn in some}
            return
        self.copied.add(frames[0][0])
        raise OSError(errno.EFAULT, "made up")


def test_copies_that_were_made_before_a_call_failed_are_noted_paid_for_and_dropped() -> None:
    """Of 8,192 frames the first call copies 4,096; of those of the second, which fails, nobody knows."""
    kvm, slot = FailingKvm(fails_at=2), OneSlot(npages=8192)
    guest, budget = guest_of(os.getpid(), 1 << 32, 8192), Budget(100e6, burst_s=1)
    replicator = Replicator(budget, lambda: 0, opened=lambda *_: slot, ask=kvm)  # type: ignore[arg-type]
    wanted = replace(COPIES, npages=np.array([8192], np.int32))
    (outcome,), (failure,) = replicator.apply([wanted], {"db1": guest})
    assert outcome.replicated == 4096 and "db1: not all was replicated: [Errno 14] made up" in failure
    assert budget.available_bytes(0) <= 100e6 - 4097 * 4096
    assert replicator.drop(Collapse("db1", HVA, wanted.npages, "test"), guest) >= 4097
    assert not kvm.copied


def test_what_was_not_known_after_an_error_is_asked_for_again() -> None:
    kvm, slot, guest = FailingKvm(fails_at=1), OneSlot(), guest_of(os.getpid(), 1 << 32, 8)
    replicator = Replicator(Budget(None), lambda: 0, opened=lambda *_: slot, ask=kvm)  # type: ignore[arg-type]
    assert replicator.apply([COPIES], {"db1": guest})[1] and kvm.copied == {0}
    assert not replicator.apply([COPIES], {"db1": guest})[1] and kvm.copied == {0, 1, 2, 3}


@dataclass
class OneSlot:
    """A placement fd of a guest with one slot; no KVM of ours runs here."""

    npages: int = 8
    fd: int = 3
    is_closed: bool = False

    def call(self, step: Any) -> Any:
        return step(self.fd)

    def info(self) -> Any:
        return SimpleNamespace(
            root_nodes=0b11, slots=[SimpleNamespace(as_id=0, base_gfn=0, npages=self.npages, hva=1 << 32)]
        )

    def statistics(self) -> dict[str, int]:
        return {"replicated_pages": 0, "collapsed_pages": 0, "released_pages": 0, "replica_copies": 0}

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Kvm:
    """KVM's ioctl: drops ``pages_a_call`` of each range, as a signal has it do, or raises ``error``."""

    dropped: list[tuple[int, list[int]]] = field(default_factory=list)
    pages_a_call: int = 1 << 20
    error: OSError | None = None
    refusal: str | None = None

    def __call__(self, fd: int, nodes: int, gfns: Any, npages: Any, done: Any, status: Any) -> None:
        if self.error and not nodes:
            raise self.error
        self.dropped.append((nodes, gfns.tolist()))
        if self.refusal:
            status[:] = STATUS.index(self.refusal)
            return
        done[:] = np.minimum(npages, npages if nodes else self.pages_a_call)


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
    assert replicator.copies() == {"db1": Copies(0, 0, waits)}
    now_ns[0] += FIRST_NS
    assert replicator.copies() == {"db1": Copies(0, 0, False)}


def test_pages_that_are_refused_beside_others_with_copies_hold_up_nothing():
    replicator, guest, _ = a_replicator(kvm := Kvm())
    kvm.refusal = "not anonymous"
    more = Replication("db1", HVA + np.uint64(4 * 4096), FOUR, (0, 1), "test")
    (outcome,), _ = replicator.apply([more], {"db1": guest})
    assert outcome.refused == {"not anonymous": 4} and not replicator.copies()["db1"].wait


HVA, FOUR = np.array([1 << 32], np.uint64), np.array([4], np.int32)
COPIES = Replication("db1", HVA, FOUR, (0, 1), "test")


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
