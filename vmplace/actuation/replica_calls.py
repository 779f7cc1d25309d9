"""Ask KVM to give guest frames copies on several nodes: range by range, in small calls."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.actuation.frame_sets import Gfns
from vmplace.actuation.replica_frames import BLOCK, blocks_of

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
