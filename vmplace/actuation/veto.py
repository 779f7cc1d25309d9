"""Which pages move to and fro, and are better left alone?  Pure; memory follows what moved lately.

1. Remember which page left which node in the last ``memory_windows`` windows (10 bytes per moved page,
   one entry per huge page, at most ``most_entries``).
2. A page that moves back to a node it left that recently marks its 2 MiB block.
3. A marked block is left alone for 4 windows, then 8, 16 ... 256, doubling with each mark; a block that kept
   quiet for 512 windows is forgiven.

The first return is let through: a workload may change its mind once.
"""

import numpy as np
import numpy.typing as npt

from vmplace.topology.guest import HUGE_BYTES

_FIRST_REST = 4
_LONGEST_REST = 256
_FORGIVEN_AFTER = 512


class PingPongVeto:
    """The memory of one guest's moves."""

    def __init__(self, *, memory_windows: int = 8, most_entries: int = 1 << 19) -> None:
        self._memory_windows = memory_windows
        self._most_entries = most_entries
        self._window = 0
        self._left: list[tuple[int, npt.NDArray[np.uint64], npt.NDArray[np.int16]]] = []
        self._marks: dict[int, tuple[int, int]] = {}

    def start_window(self) -> None:
        """Let one window pass: old moves and forgiven blocks are forgotten."""
        self._window += 1
        self._left = self._merged([e for e in self._left if e[0] > self._window - self._memory_windows])
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
        order = np.argsort(hva)
        hva, from_nid, to_nid = hva[order], from_nid[order].astype(np.int16), to_nid[order]
        for block in np.unique(hva[self._returned(hva, to_nid)] // np.uint64(HUGE_BYTES)).tolist():
            self._mark(block)
        self._left.append((self._window, hva, from_nid))
        self._drop_oldest()

    @property
    def entries(self) -> int:
        """Return how many moved pages are remembered."""
        return sum(len(hva) for _, hva, _ in self._left)

    def _returned(self, hva: npt.NDArray[np.uint64], to_nid: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
        returned = np.zeros(len(hva), bool)
        for _, pages, left_nid in self._left:
            at = np.minimum(np.searchsorted(pages, hva), len(pages) - 1)
            returned |= (pages[at] == hva) & (left_nid[at] == to_nid)
        return returned

    def _mark(self, block: int) -> None:
        marks = self._marks.get(block, (0, 0))[0] + 1
        rest = min(_FIRST_REST << min(marks - 1, 8), _LONGEST_REST)
        self._marks[block] = marks, self._window + 1 + rest

    def _drop_oldest(self) -> None:
        while len(self._left) > 1 and self.entries > self._most_entries:
            self._left.pop(0)

    @staticmethod
    def _merged(
        entries: list[tuple[int, npt.NDArray[np.uint64], npt.NDArray[np.int16]]],
    ) -> list[tuple[int, npt.NDArray[np.uint64], npt.NDArray[np.int16]]]:
        merged = []
        for window in sorted({e[0] for e in entries}):
            mine = [e for e in entries if e[0] == window]
            if len(mine) == 1:
                merged.append(mine[0])
                continue
            hva = np.concatenate([e[1] for e in mine])
            order = np.argsort(hva, kind="stable")
            merged.append((window, hva[order], np.concatenate([e[2] for e in mine])[order]))
        return merged
