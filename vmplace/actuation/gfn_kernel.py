"""Move a guest's pages by the placement fd of a patched KVM, in the shape of move_pages(2).

KVM copies huge pages while the guest goes on using them, and empties no LRU batches.  A huge page that was
written meanwhile moves piece by piece (INSIST): vCPUs wait for 256 KiB to be copied, where move_pages(2) has
them wait for 2 MiB.  It is not left for a second call, which might find it written again.  Pages in LRU
batches are busy until somebody empties these (DRAIN), at most once in DRAIN_PAUSE_NS, as that makes all CPUs
of the host work.  Pages outside of the memslots, and guests without placement fd, move by move_pages(2).
Undo always does: what it needs is sure, not gentle.

Interface: kvm-patches/kvm_placement.h and Documentation/virt/kvm/placement.rst in the patched kernel.
"""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.actuation.batch import Hvas, MoveKernel, NativeKernel, Status
from vmplace.actuation.identity import PROC
from vmplace.errors import VmplaceError
from vmplace.held import HeldError
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.placement import FEATURE_MOVE, Placement, Slot, open_placement, probe_features

MOVE_INSIST, MOVE_DRAIN = 2, 4
DRAIN_PAUSE_NS = 1_000_000_000

# asm-generic/errno.h; module errno has no name for it.
EHWPOISON = 133
OK, BUSY, DIRTY_LOG, NO_MEMORY, WRITTEN, NODE_REFUSED = 0, 6, 7, 8, 12, 13
ERRNO_OF = {
    1: errno.EFAULT,  # no memslot
    2: errno.ENOENT,  # nothing is mapped
    3: errno.EOPNOTSUPP,  # of a device, hugetlbfs or guest_memfd
    4: errno.EPERM,  # locked
    BUSY: errno.EBUSY,
    DIRTY_LOG: errno.EBUSY,
    10: EHWPOISON,
    11: errno.EACCES,  # others map it, too
    WRITTEN: errno.EBUSY,
}
"""-errno as move_pages(2) would tell it; a status that is not here is a page that was not reached."""
WHOLE_CALL = {NO_MEMORY: errno.ENOMEM, NODE_REFUSED: errno.EACCES}
"""What concerns every page to that node; move_pages(2) fails whole with these."""

Gfns = npt.NDArray[np.uint64]


def can_move() -> bool:
    """Tell whether this host's KVM moves pages."""
    try:
        return bool(probe_features() & FEATURE_MOVE)
    except VmplaceError:
        return False


class GuestKernels:
    """Gives each guest the best kernel there is to move it; holds its placement fd until it ends."""

    def __init__(self, stock: MoveKernel | None = None, proc: Path = PROC, *, by_gfn: bool = False) -> None:
        self.stock = stock or NativeKernel()
        self._proc = proc
        self._by_gfn = by_gfn
        self._kernels: dict[tuple[int, int], GfnKernel] = {}

    def of(self, guest: GuestTopology) -> MoveKernel:
        """Return what moves the guest's pages in this window."""
        if not self._by_gfn:
            return self.stock
        try:
            kernel = self._kernels.get(guest.identity)
            if kernel is None:
                kernel = GfnKernel(open_placement(guest, self._proc), self.stock)
                self._kernels[guest.identity] = kernel
            kernel.start_window()
        except HeldError:
            raise
        except (VmplaceError, OSError):
            # No VM, or a dead one: what there is of the process may still be moved.
            return self.stock
        return kernel

    def release(self, guest: GuestTopology) -> None:
        """Close the guest's descriptor, if there is one."""
        if kernel := self._kernels.pop(guest.identity, None):
            kernel.close()

    def forget_ended(self, alive: set[tuple[int, int]]) -> None:
        """Close the descriptors of guests whose identity is not among ``alive``."""
        for identity in self._kernels.keys() - alive:
            self._kernels.pop(identity).close()

    def close(self) -> None:
        """Close all descriptors."""
        self.forget_ended(set())


class GfnKernel:
    """MoveKernel of the one guest that ``placement`` is of."""

    def __init__(
        self, placement: Placement, stock: MoveKernel, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._placement = placement
        self._slots: list[Slot] = []
        self._stock = stock
        self._clock = clock
        self._drained_ns: int | None = None

    def start_window(self) -> None:
        """Look up which guest frame an address is; OSError when the VM is dead."""
        self._slots = [slot for slot in self._placement.info().slots if not slot.as_id]

    def close(self) -> None:
        """Close the descriptor."""
        self._placement.close()

    def page_nids(self, pid: int, hvas: Hvas, status: Status) -> None:
        """See ``native.page_nids``."""
        self._stock.page_nids(pid, hvas, status)

    def move_pages(self, pid: int, hvas: Hvas, nids: Status, status: Status) -> int:
        """Move, fill ``status`` as move_pages(2) does, return the duration in ns."""
        gfns, inside = gfns_of(hvas, self._slots)
        duration = self._move(
            gfns[inside], nids[inside], reported := np.full(int(inside.sum()), -1, np.int32)
        )
        status[inside] = _as_errno(reported, nids[inside], status[inside])
        if not inside.all():
            rest = status[~inside]
            duration += self._stock.move_pages(pid, hvas[~inside], nids[~inside], rest)
            status[~inside] = rest
        for code, number in WHOLE_CALL.items():
            if (reported == code).any():
                raise OSError(number, os.strerror(number))
        return duration

    def _move(self, gfns: Gfns, nids: Status, reported: Status) -> int:
        duration = self._call(gfns, nids, reported, np.ones(len(gfns), bool), MOVE_INSIST)
        if (reported == BUSY).any() and self._may_drain():
            duration += self._call(gfns, nids, reported, reported == BUSY, MOVE_DRAIN | MOVE_INSIST)
        return duration

    def _call(
        self, gfns: Gfns, nids: Status, reported: Status, which: npt.NDArray[np.bool_], flags: int
    ) -> int:
        if not which.any():
            return 0
        found = reported[which]
        npages = np.zeros(len(found), np.int32)
        asked = gfns[which], nids[which]
        duration = self._placement.call(lambda fd: native.placement_move(fd, *asked, npages, found, flags))
        reported[which] = found
        return duration

    def _may_drain(self) -> bool:
        now = self._clock()
        due = self._drained_ns is None or now - self._drained_ns >= DRAIN_PAUSE_NS
        self._drained_ns = now if due else self._drained_ns
        return due


def gfns_of(hvas: Hvas, slots: list[Slot]) -> tuple[Gfns, npt.NDArray[np.bool_]]:
    """Return the guest frame of each address, and whether a slot has it."""
    gfns, inside = np.zeros(len(hvas), np.uint64), np.zeros(len(hvas), bool)
    for slot in slots:
        here = (hvas >= np.uint64(slot.hva)) & (hvas < np.uint64(slot.hva + slot.npages * PAGE_BYTES))
        gfns[here] = (hvas[here] - np.uint64(slot.hva)) // np.uint64(PAGE_BYTES) + np.uint64(slot.base_gfn)
        inside |= here
    return gfns, inside


def _as_errno(reported: Status, nids: Status, untried: Status) -> Status:
    """Return KVM_PLACEMENT_* as the node, -errno, or what ``untried`` has for pages that were not reached."""
    found = np.where(reported == OK, nids, untried)
    for code, number in ERRNO_OF.items():
        found = np.where(reported == code, -number, found)
    return found.astype(np.int32)
