"""Which guest frames have copies, and in which ranges is KVM asked for them?"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from vmplace.policy.plan import Collapse, Replication
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES
from vmplace.topology.placement import Slot

Gfns = npt.NDArray[np.uint64]
NONE: Gfns = np.zeros(0, np.uint64)
BLOCK = HUGE_BYTES // PAGE_BYTES
"""A huge page gets copies as a whole, if all its frames are asked for in one range."""
MOST_DOUBTED = 1 << 16
"""Frames with copies that are asked for again at once: some 10 ms."""


class ReplicatedFrames:
    """The frames that were replicated lately: eight bytes for each.

    KVM drops copies of pages that are written, or when memory is short, and tells how many, but not which.
    Then all that are held are in doubt, as they are where one more node is to have copies.  They are asked
    for again, some at a time, in turn: a frame is in doubt until it was asked for, whatever is dropped
    meanwhile.
    """

    def __init__(self) -> None:
        self._frames: Gfns = NONE
        self._doubted: Gfns = NONE
        self._again: Gfns = NONE
        self._next_again = np.uint64(0)
        self._dropped = self._nodes = 0

    def note(self, tried: Gfns, done: Gfns, unsure: Gfns = NONE, lacking: Gfns = NONE) -> int:
        """Note which of the frames that were tried have copies; return how many had none before.

        ``unsure``: those that may have some, which nobody knows.  They count as held, to be dropped with the
        others, and are in doubt.  So do those ``lacking`` further copies that had some: they keep these.
        """
        new = np.setdiff1d(done, self._frames, assume_unique=True)
        unsure = united(unsure, np.intersect1d(lacking, self._frames, assume_unique=True))
        others = np.setdiff1d(self._frames, tried, assume_unique=True)
        self._frames = united(others, done, unsure)
        in_doubt = np.setdiff1d(self._doubted, tried, assume_unique=True)
        self._doubted = united(in_doubt, unsure)
        self._go_on(tried)
        return len(new)

    def _go_on(self, tried: Gfns) -> None:
        """Have the next question of what is in doubt begin with the first that was left out of the last."""
        left = self._again[~np.isin(self._again, tried)]
        if len(left):
            self._next_again = left[0]
        elif len(self._again):
            self._next_again = self._again[-1] + np.uint64(1)
        self._again = NONE

    def any(self) -> bool:
        """Tell whether any frame has copies."""
        return bool(len(self._frames))

    def among(self, first: Gfns, end: Gfns) -> Gfns:
        """Return the frames held that lie in these runs, by first frame and by the one after the last."""
        order = np.argsort(first, kind="stable")
        first, end = first[order], np.maximum.accumulate(end[order])
        at = np.searchsorted(first, self._frames, side="right").astype(np.intp) - 1
        found: Gfns = self._frames[(at >= 0) & (self._frames < np.append(end, np.uint64(0))[at])]
        return found

    def take(self, gfns: Gfns) -> Gfns:
        """Forget those of ``gfns`` that have copies, and return them, ascending."""
        taken = np.intersect1d(self._frames, gfns, assume_unique=True)
        self._frames = np.setdiff1d(self._frames, taken, assume_unique=True)
        self._doubted = np.setdiff1d(self._doubted, taken, assume_unique=True)
        return taken

    def note_drops(self, dropped: int) -> None:
        """Doubt all frames, if KVM has dropped copies since it was asked; ``dropped``: so many, ever."""
        if dropped != self._dropped:
            self._doubted, self._dropped = self._frames, dropped

    def note_nodes(self, nodes: int) -> None:
        """Doubt all frames, if ``nodes`` (a bitmap) that are to have copies are not only those of before."""
        if nodes & ~self._nodes:
            self._doubted = self._frames
        self._nodes = nodes

    def missing(self, gfns: Gfns) -> Gfns:
        """Return those of ``gfns``, ascending, to ask for: that have no copies, or are in doubt."""
        doubted = np.intersect1d(gfns, self._doubted, assume_unique=True)
        self._again = from_on(doubted, self._next_again)[:MOST_DOUBTED]
        return united(np.setdiff1d(gfns, self._frames, assume_unique=True), self._again)


def united(*parts: Gfns) -> Gfns:
    """Return all frames of some lists, each once, ascending.

    The parts are in order mostly, so that to sort them takes a hundredth of what np.unique takes.
    """
    gfns = np.sort(np.concatenate((NONE, *parts)), kind="stable")
    return gfns[np.append(gfns[1:] != gfns[:-1], True)] if len(gfns) else gfns


def from_on(gfns: Gfns, first: np.uint64) -> Gfns:
    """Return the frames, ascending, in turn: from ``first`` on, and then those before it."""
    at = int(np.searchsorted(gfns, first))
    return np.concatenate((gfns[at:], gfns[:at]))


def runs_in(pages: Collapse, slots: Iterable[Slot]) -> tuple[Gfns, Gfns]:
    """Return the runs of guest frames of these pages: the first of each, and the one after its last."""
    end = pages.hva + pages.npages.astype(np.uint64) * np.uint64(PAGE_BYTES)
    firsts, ends = [NONE], [NONE]
    for slot in (slot for slot in slots if not slot.as_id):
        begin, stop = np.uint64(slot.hva), np.uint64(slot.hva + slot.npages * PAGE_BYTES)
        inside = (pages.hva < stop) & (end > begin)
        for found, hva in ((firsts, pages.hva[inside]), (ends, end[inside])):
            offset = (np.clip(hva, begin, stop) - begin) // np.uint64(PAGE_BYTES)
            found.append(offset + np.uint64(slot.base_gfn))
    return np.concatenate(firsts), np.concatenate(ends)


def wanted_gfns(wanted: Replication, slots: Iterable[Slot]) -> Gfns:
    """Return the guest frames of the wanted pages, ascending; pages that no slot maps are left out."""
    hvas = np.repeat(wanted.hva, wanted.npages) + _steps(wanted.npages) * np.uint64(PAGE_BYTES)
    found = []
    for slot in slots:
        inside = (hvas >= np.uint64(slot.hva)) & (hvas < np.uint64(slot.hva + slot.npages * PAGE_BYTES))
        if not slot.as_id and inside.any():
            offset = (hvas[inside] - np.uint64(slot.hva)) // np.uint64(PAGE_BYTES)
            found.append(offset + np.uint64(slot.base_gfn))
    return united(*found)


def runs_of(gfns: Gfns) -> tuple[Gfns, npt.NDArray[np.int32]]:
    """Return the first frame and the length of each run of ascending frames."""
    starts = np.flatnonzero(np.diff(gfns.astype(np.int64), prepend=-2) != 1)
    return gfns[starts], np.diff(starts, append=len(gfns)).astype(np.int32)


def _steps(npages: npt.NDArray[np.int32]) -> Gfns:
    """Return 0, 1, ... npages - 1 for each run."""
    ends = np.cumsum(npages)
    steps: Gfns = (np.arange(int(npages.sum())) - np.repeat(ends - npages, npages)).astype(np.uint64)
    return steps


def affordable(gfns: Gfns, most: int) -> Gfns:
    """Return the first ``most`` frames, fewer where that would cut a whole block that is not the first."""
    if most >= len(gfns):
        return gfns
    blocks = gfns[: most + BLOCK] // np.uint64(BLOCK)
    cut = np.flatnonzero(blocks == blocks[most])
    return gfns[: int(cut[0]) if cut[0] and len(cut) == BLOCK else most]


def blocks_of(gfns: Gfns) -> tuple[Gfns, npt.NDArray[np.int32]]:
    """Return first frame and length of the ranges to ask for: whole blocks of 2 MiB, and single frames."""
    _, where, counts = np.unique(gfns // np.uint64(BLOCK), return_inverse=True, return_counts=True)
    whole = counts[where] == BLOCK
    first = ~whole | (gfns % np.uint64(BLOCK) == 0)
    return gfns[first], np.where(whole[first], BLOCK, 1).astype(np.int32)
