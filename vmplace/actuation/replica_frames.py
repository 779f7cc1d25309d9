"""Which guest frames have copies, and in which ranges is KVM asked for them?"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from vmplace.actuation.frame_sets import NONE, FrameSet, Gfns, united
from vmplace.policy.plan import Collapse, Replication
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES
from vmplace.topology.placement import Slot

BLOCK = HUGE_BYTES // PAGE_BYTES
"""A huge page gets copies as a whole, if all its frames are asked for in one range."""
MOST_DOUBTED = 1 << 16
"""Frames with copies that are asked for again at once: some 10 ms."""


class ReplicatedFrames:
    """The frames that were replicated lately.

    KVM drops copies of pages that are written, or when memory is short, and tells how many, but not which.
    Then all that are held are in doubt, as they are where one more node is to have copies.  They are asked
    for again, some at a time, in turn: a frame is in doubt until it was asked for, whatever is dropped
    meanwhile.
    """

    def __init__(self) -> None:
        self._frames = self._doubted = FrameSet()
        self._again: Gfns = NONE
        self._next_again = 0
        self._dropped = self._nodes = 0

    def note(self, tried: Gfns, done: Gfns, unsure: Gfns = NONE, bare: Gfns = NONE) -> int:
        """Note which of the frames that were tried have copies; return how many had none before.

        ``unsure``: those that may have some, which nobody knows.  They count as held, to be dropped with the
        others, and are in doubt.  So do all others that were refused and had some, as KVM keeps these: but
        for those that are ``bare``, and have none for sure.
        """
        new = len(done) - int(np.count_nonzero(self._frames.has(done)))
        asked, copied = FrameSet.of(tried), FrameSet.of(done)
        in_doubt = ((asked & self._frames) - copied - FrameSet.of(bare)) | FrameSet.of(unsure)
        self._frames = united(self._frames - asked, copied, in_doubt)
        self._doubted = (self._doubted - asked) | in_doubt
        self._go_on(asked)
        return new

    def _go_on(self, tried: FrameSet) -> None:
        """Have the next question of what is in doubt begin with the first that was left out of the last."""
        left = self._again[~tried.has(self._again)]
        if len(left):
            self._next_again = int(left[0])
        elif len(self._again):
            self._next_again = int(self._again[-1]) + 1
        self._again = NONE

    def any(self) -> bool:
        """Tell whether any frame may have copies."""
        return bool(self._frames)

    def any_sure(self) -> bool:
        """Tell whether any frame has copies, beyond doubt."""
        return bool(self._frames - self._doubted)

    def among(self, first: Gfns, end: Gfns) -> FrameSet:
        """Return the frames held that lie in these runs, by first frame and by the one after the last."""
        return self._frames & FrameSet.of_runs(first, end)

    def forget(self, frames: FrameSet) -> None:
        """Hold these no more: their copies are dropped."""
        self._frames, self._doubted = self._frames - frames, self._doubted - frames

    def forget_all(self) -> None:
        """Hold none: all copies of the guest are dropped, those of frames that no slot maps any more, too."""
        self._frames = self._doubted = FrameSet()

    def sure(self, frames: FrameSet) -> int:
        """Return how many of these have copies, beyond doubt."""
        return len((frames & self._frames) - self._doubted)

    def note_drops(self, dropped: int) -> None:
        """Doubt all frames, if KVM has dropped copies since it was asked; ``dropped``: so many, ever."""
        if dropped != self._dropped:
            self._doubted, self._dropped = self._frames, dropped

    def note_own_drops(self, dropped: int) -> None:
        """Doubt none for so many drops, which are of frames that were forgotten."""
        self._dropped += dropped

    def note_nodes(self, nodes: int) -> None:
        """Doubt all frames, if ``nodes`` (a bitmap) that are to have copies are not only those of before."""
        if nodes & ~self._nodes:
            self._doubted = self._frames
        self._nodes = nodes

    def without(self, frames: FrameSet) -> FrameSet:
        """Return those of ``frames`` that have no copies."""
        return frames - self._frames

    def missing(self, frames: FrameSet) -> FrameSet:
        """Return those of ``frames`` to ask for: that have no copies, or are in doubt."""
        self._again = (frames & self._doubted).in_turn(self._next_again, MOST_DOUBTED)
        return self.without(frames) | FrameSet.of(self._again)


def runs_in(pages: Collapse | Replication, slots: Iterable[Slot]) -> tuple[Gfns, Gfns]:
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


def frames_of(pages: Collapse | Replication, slots: Iterable[Slot]) -> FrameSet:
    """Return the guest frames of these pages; those that no slot maps are left out."""
    return FrameSet.of_runs(*runs_in(pages, slots))


def runs_of(gfns: Gfns) -> tuple[Gfns, npt.NDArray[np.int32]]:
    """Return the first frame and the length of each run of ascending frames."""
    starts = np.flatnonzero(np.diff(gfns.astype(np.int64), prepend=-2) != 1)
    return gfns[starts], np.diff(starts, append=len(gfns)).astype(np.int32)


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
