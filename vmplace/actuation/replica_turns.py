"""Which of the frames that are to have copies does a window ask for?  All in turn, whatever KVM refuses.

KVM refuses some frames each time: nothing is mapped there yet, or they are no anonymous memory.  They cost no
budget, so a window goes on behind them, but within bounds; and the next one begins where the last one ended.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from vmplace.actuation.frame_sets import NONE, FrameSet, Gfns
from vmplace.actuation.replica_calls import Attempt
from vmplace.actuation.replica_frames import BLOCK, ReplicatedFrames, affordable

MOST_REFUSED, MOST_PARTS, MOST_AT_ONCE = 1 << 14, 64, 1 << 14
"""So many frames are refused in a window until it asks for no more, in so many parts, each of so many."""
MOST_IN_A_ROW = 1 << 18
"""So many are refused, one after the other, until the others are taken to be refused, too: of 1 GiB."""


class Turn:
    """Where the questions of one guest's frames go on, and how many were refused since one was not."""

    def __init__(self) -> None:
        self.next_gfn = 0
        self._refused = 0

    def note(self, tried: int, *, is_vain: bool) -> None:
        """Note of how many frames KVM was asked for copies, and whether none has some."""
        self._refused = self._refused + tried if is_vain else 0

    def is_whole(self, asked: int) -> bool:
        """Tell whether all that are ``asked`` for were refused, or very many of them; count anew then."""
        is_whole = self._refused >= min(asked, MOST_IN_A_ROW)
        self._refused = 0 if is_whole else self._refused
        return is_whole


class CopyWindow:
    """What one window asks for, part by part: a part is what the budget pays for if KVM copies all of it.

    ``asked``: how many frames are to have copies; ``has_cut``: some were asked for as a part of a whole
    block, which KVM refuses if that is a huge page.
    """

    def __init__(self, asked: FrameSet, turn: Turn, most: int) -> None:
        """``most``: how many the budget pays for."""
        self.asked = len(asked)
        self.has_cut = False
        self._all = self._rest = asked
        self._turn, self._next_gfn = turn, _begin(asked, turn.next_gfn, most)
        self._refused = 0
        self._attempts: list[Attempt] = []

    def part(self, most: int) -> Gfns:
        """Return which frames to ask for now, ascending; none: no more in this window."""
        if self._refused >= MOST_REFUSED or len(self._attempts) >= MOST_PARTS:
            return NONE
        most = min(most, MOST_AT_ONCE)
        part = affordable(self._rest.in_turn(self._next_gfn, most + BLOCK), most)
        if len(part):
            self._next_gfn = int(part[-1]) + 1
            self._rest -= FrameSet.of(part)
            self.has_cut |= any(_is_cut(self._all, part, int(gfn)) for gfn in part[[0, -1]])
        return np.sort(part)

    def note(self, attempt: Attempt) -> None:
        """Note what came of a part; where a call failed, the next question goes on behind the part, too."""
        self._attempts.append(attempt)
        self._refused += len(attempt.tried) - len(attempt.done)
        self._turn.next_gfn = self._next_gfn

    def end(self, held: ReplicatedFrames) -> int:
        """Note in ``held`` what came of all parts; return how many frames have copies that had none."""
        tried, done, unknown, bare = (
            np.concatenate([NONE, *(getattr(one, name) for one in self._attempts)])
            for name in ("tried", "done", "unknown", "bare")
        )
        self._turn.note(len(tried), is_vain=not len(done))
        return held.note(tried, done, unknown, bare)

    def left(self) -> int:
        """Return how many frames were not asked for."""
        return self.asked - sum(len(one.tried) for one in self._attempts)

    def refused(self) -> Mapping[str, int]:
        """Return how many were refused for what."""
        counts: Counter[str] = Counter()
        for one in self._attempts:
            counts.update(one.refused())
        return dict(counts)


def _is_cut(asked: FrameSet, part: Gfns, gfn: int) -> bool:
    """Tell whether a part has a part alone of the block of a frame, all of which is asked for."""
    first = gfn - gfn % BLOCK
    of_part = np.searchsorted(np.sort(part), np.array([first, first + BLOCK], np.uint64))
    return int(np.diff(of_part)[0]) < BLOCK and _is_whole(asked, first)


def _is_whole(asked: FrameSet, first: int) -> bool:
    return bool(asked.has(np.arange(first, first + BLOCK, dtype=np.uint64)).all())


def _begin(asked: FrameSet, next_gfn: int, most: int) -> int:
    """Return where to go on: with all of a whole block, which may be a huge page, if that is paid for."""
    first = next_gfn - next_gfn % BLOCK
    return first if most >= BLOCK and _is_whole(asked, first) else next_gfn
