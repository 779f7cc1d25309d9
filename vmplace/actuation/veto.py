"""Which pages move to and fro, and are better left alone?  Pure; memory follows what moved lately.

1. Remember which page left which node in the last ``memory_windows`` windows (10 bytes per moved page,
   one entry per huge page, at most ``most_entries``).
2. A page that moves back to a node it left that recently marks its 2 MiB block.
3. A marked block is left alone for 4 windows, then 8, 16 ... 256, doubling with each mark; a block that kept
   quiet for 512 windows is forgiven.
4. Once vCPUs are tied to another node, all of it is forgotten (``Mover.forgive``): memory is to follow.
5. Nothing is asked where all pages of a guest go back because it lost time (``Move.undoes``).

The first return is let through: a workload may change its mind once.  Windows are counted, and not seconds:
who looks four times as often learns so much sooner that a page is well where it is.  Rests of 4 to 256 s at
windows of 250 ms brought the local accesses of tests/unit/simulate/test_agent_run.py, whose pages all only
read, from over 80 % down to 26 %.  What moves to and fro meanwhile is within the budget of moves.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vmplace.topology.guest import HUGE_BYTES

_FIRST_REST = 4
_LONGEST_REST = 256
_FORGIVEN_AFTER = 512


class _Left(NamedTuple):
    """Pages and the nodes that they left in a window."""

    window: int
    hva: npt.NDArray[np.uint64]
    nid: npt.NDArray[np.int16]


class PingPongVeto:
    """The memory of one guest's moves."""

    def __init__(self, *, memory_windows: int = 8, most_entries: int = 1 << 19) -> None:
        self._memory_windows = memory_windows
        self._most_entries = most_entries
        self._window = 0
        self._left: list[_Left] = []
        # Moves of this window: a page moves once in it, so nothing is looked up here.
        self._leaving: list[_Left] = []
        self._marks: dict[int, tuple[int, int]] = {}

    def start_window(self) -> None:
        """Let one window pass: old moves and forgiven blocks are forgotten."""
        if self._leaving:
            self._left.append(_merged(self._leaving))
            self._leaving = []
        self._window += 1
        self._left = [left for left in self._left if left.window > self._window - self._memory_windows]
        if not self._window % 64:
            limit = self._window - _FORGIVEN_AFTER
            self._marks = {b: m for b, m in self._marks.items() if m[1] > limit}

    def allowed(self, hva: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Tell for each page whether it may move in this window."""
        resting = [b for b, (_, until) in self._marks.items() if until > self._window]
        if not resting:
            return np.ones(len(hva), bool)
        return ~np.isin(hva // np.uint64(HUGE_BYTES), np.array(resting, np.uint64))

    def moved(
        self, hva: npt.NDArray[np.uint64], from_nid: npt.NDArray[np.int16], to_nid: npt.NDArray[np.int16]
    ) -> None:
        """Note pages that moved in this window; those that came back mark their blocks."""
        if not len(hva):
            return
        for block in np.unique(hva[self._returned(hva, to_nid)] // np.uint64(HUGE_BYTES)).tolist():
            self._mark(block)
        self._leaving.append(_Left(self._window, hva, from_nid.astype(np.int16)))
        self._drop_oldest()

    @property
    def entries(self) -> int:
        """Return how many moved pages are remembered."""
        return sum(len(left.hva) for left in (*self._left, *self._leaving))

    def _returned(self, hva: npt.NDArray[np.uint64], to_nid: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
        returned = np.zeros(len(hva), bool)
        for left in self._left:
            at = np.minimum(np.searchsorted(left.hva, hva), len(left.hva) - 1)
            returned |= (left.hva[at] == hva) & (left.nid[at] == to_nid)
        return returned

    def _mark(self, block: int) -> None:
        marks = self._marks.get(block, (0, 0))[0] + 1
        rest = min(_FIRST_REST << min(marks - 1, 8), _LONGEST_REST)
        self._marks[block] = marks, self._window + 1 + rest

    def _drop_oldest(self) -> None:
        while self._left and self.entries > self._most_entries:
            self._left.pop(0)
        while len(self._leaving) > 1 and self.entries > self._most_entries:
            self._leaving.pop(0)


def _merged(leaving: list[_Left]) -> _Left:
    hva = np.concatenate([left.hva for left in leaving])
    order = np.argsort(hva, kind="stable")
    return _Left(leaving[0].window, hva[order], np.concatenate([left.nid for left in leaving])[order])
