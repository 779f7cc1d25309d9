"""Ask KVM to give guest frames copies on several nodes, or to drop these: range by range, in small calls."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.actuation.frame_sets import Gfns
from vmplace.actuation.replica_frames import BLOCK, blocks_of
from vmplace.errors import VmplaceError
from vmplace.topology.placement import Placement

STATUS = (
    "ok",
    "no memslot",
    "not present",
    "not anonymous",
    "locked",
    "huge",
    "busy",
    "dirty logging",
    "no memory",
    "backing off",
    "poisoned",
    "shared",
    "written",
    "node refused",
)
"""KVM_PLACEMENT_* of kvm-patches/kvm_placement.h, in words, by number."""
MOST_RANGES = 1024
MOST_PAGES = 8 * BLOCK
"""Per call, so that an order to stop need not wait for long."""
OK, BUSY = (STATUS.index(word) for word in ("ok", "busy"))
BARE = [STATUS.index(word) for word in ("no memslot", "not present", "dirty logging")]
"""Why a page has no copies at all.  Pages that KVM refuses for other reasons keep those that they have."""
INTERRUPTED = -1
"""The status of what KVM was not asked for, or did not come to."""
MOST_STILL = 3
"""Calls in a row that drop nothing, until it is left for later."""
Statuses = npt.NDArray[np.int32]
Indexes = npt.NDArray[np.intp]
Ask = Callable[[int, int, Gfns, Statuses, Statuses, Statuses], None]
"""``native.placement_replicate``, or what stands for it on a simulated host."""


def ask_kvm(  # noqa: PLR0913 - the ioctl's arguments
    fd: int, nodes: int, gfns: Gfns, npages: Statuses, done: Statuses, status: Statuses
) -> None:
    """Ask the KVM under vmplace: fills ``done``, in pages, and ``status``, by range."""
    native.placement_replicate(fd, nodes, gfns, npages, done, status)


class Attempt:
    """Frames that KVM is asked to give copies, and what is known of each, also after a call that failed.

    ``was_asked[F]``: KVM was asked for it; ``has[F]``: it has copies now; ``unsure[F]``: nobody knows;
    ``status[F]``: why it has none, as KVM tells it.
    """

    def __init__(self, fd: int, nodes: int, gfns: Gfns, ask: Ask = ask_kvm) -> None:
        self._fd, self._nodes, self._ask = fd, nodes, ask
        self.gfns = gfns
        self.was_asked, self.has, self.unsure, self._is_bare = np.zeros((4, len(gfns)), np.bool_)
        self.status = np.full(len(gfns), INTERRUPTED, np.int32)

    def run(self) -> None:
        """Ask for all of them; raises what a call raises, and asks for no more then."""
        self._ask_for(np.arange(len(self.gfns)))
        # A page that a vCPU is faulting in is busy for that moment, and those that vCPUs use most often are.
        # Those in another CPU's LRU batch remain busy, some dozens of small pages: the next plan asks again.
        self._ask_for(np.flatnonzero((self.status == BUSY) & ~self.has))

    @property
    def tried(self) -> Gfns:
        """Return the frames that KVM was asked for."""
        return self.gfns[self.was_asked]

    @property
    def done(self) -> Gfns:
        """Return those that have copies now."""
        return self.gfns[self.has]

    @property
    def unknown(self) -> Gfns:
        """Return those that may have copies: a call failed, and nobody knows."""
        return self.gfns[self.unsure]

    @property
    def bare(self) -> Gfns:
        """Return those that have no copies, for sure."""
        return self.gfns[self._is_bare]

    def refused(self) -> dict[str, int]:
        """Return how many were refused for what."""
        codes, counts = np.unique(self.status[self.was_asked & ~self.has & ~self.unsure], return_counts=True)
        return {_word(code): count for code, count in zip(codes.tolist(), counts.tolist(), strict=True)}

    def _ask_for(self, where: Indexes) -> None:
        self._call(where, *blocks_of(self.gfns[where]))
        # Of a block of small pages KVM tells how many have copies, not which.
        again = where[self.unsure[where]]
        self._call(again, self.gfns[again], np.ones(len(again), np.int32))

    def _call(self, where: Indexes, first: Gfns, npages: Statuses) -> None:
        """Ask for ranges, which together are the frames at ``where``."""
        ends = np.cumsum(npages)
        for part in calls_of(npages):
            mine = where[ends[part.start] - npages[part.start] : ends[part.stop - 1]]
            # What KVM does before a call fails, it does not tell.
            self.was_asked[mine] = self.unsure[mine] = True
            done, status = np.zeros_like(npages[part]), np.full_like(npages[part], INTERRUPTED)
            self._ask(self._fd, self._nodes, first[part], npages[part], done, status)
            # Of ranges that a signal cut short, or left out, KVM tells no reason.
            status[(done < npages[part]) & (status == OK)] = INTERRUPTED
            self.has[mine] = np.repeat(done == npages[part], npages[part])
            self.unsure[mine] = np.repeat((done > 0) & (done < npages[part]), npages[part])
            self.status[mine] = np.repeat(status, npages[part])
            # Of a range KVM tells why the first of its frames is refused, and not of the others.
            is_bare = np.isin(status, BARE) & (npages[part] == 1) & (done == 0)
            self._is_bare[mine] = np.repeat(is_bare, npages[part])


def calls_of(npages: Statuses) -> list[slice]:
    """Return which ranges to ask for by which call: up to MOST_RANGES, of about MOST_PAGES together."""
    if not len(npages):
        return []
    pages, ranges = (np.cumsum(npages) - 1) // MOST_PAGES, np.arange(len(npages)) // MOST_RANGES
    new = np.flatnonzero((np.diff(pages) > 0) | (np.diff(ranges) > 0)) + 1
    return [slice(a, b) for a, b in pairwise([0, *new.tolist(), len(npages)])]


def _word(code: int) -> str:
    return STATUS[code] if 0 <= code < len(STATUS) else "interrupted"


def collapse_all(placement: Placement, ask: Ask) -> None:
    """Drop all copies of a guest."""
    slots = [slot for slot in placement.info().slots if not slot.as_id]
    gfns = np.array([slot.base_gfn for slot in slots], np.uint64)
    npages = np.array([slot.npages for slot in slots], np.int32)
    collapse_runs(placement.fd, gfns, npages, ask)


def collapse_runs(fd: int, gfns: Gfns, npages: npt.NDArray[np.int32], ask: Ask) -> None:
    """Drop the copies of runs of frames."""
    for first in range(0, len(gfns), MOST_RANGES):
        part = slice(first, first + MOST_RANGES)
        _collapse_ranges(fd, gfns[part], npages[part], ask)


def _collapse_ranges(fd: int, gfns: Gfns, npages: npt.NDArray[np.int32], ask: Ask) -> None:
    """Drop the copies of as many ranges as one call takes; VmplaceError if it would not end."""
    still = 0
    while len(gfns) and still < MOST_STILL:
        done, status = np.zeros_like(npages), np.zeros_like(npages)
        ask(fd, 0, gfns, npages, done, status)
        # A signal cuts a call short, without an error: the next one goes on from there.
        still = 0 if done.any() else still + 1
        rest = np.flatnonzero(done < npages)
        gfns, npages = gfns[rest] + done[rest].astype(np.uint64), npages[rest] - done[rest]
    if len(gfns):
        raise VmplaceError(
            f"KVM was interrupted {MOST_STILL} times, copies of {npages.sum()} pages may be left",
            hint="`vmplace undo` drops them",
        )
