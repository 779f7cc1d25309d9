"""Which pages would not move again and again?  Pure.

A page in use by the kernel (I/O under way) is busy now and moves in a later window; one that is busy in three
windows running is held by somebody (VFIO, RDMA, vhost) and counts as pinned: it is tried again only after
64 windows.  At most ``most_pages`` are remembered; beyond that the oldest are forgotten.
"""

import numpy as np
import numpy.typing as npt

_PINNED_AFTER = 3
_RETRY_AFTER = 64


class StubbornPages:
    """The memory of one guest's pages that would not move."""

    def __init__(self, *, most_pages: int = 16384) -> None:
        self._most_pages = most_pages
        self._window = 0
        self._failures: dict[int, tuple[int, int]] = {}

    def start_window(self) -> None:
        """Let one window pass."""
        self._window += 1

    def pinned(self, hva: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Tell for each page whether it counts as pinned in this window."""
        held = [p for p, (count, last) in self._failures.items() if self._is_held(count, last)]
        return np.isin(hva, np.array(held, np.uint64)) if held else np.zeros(len(hva), bool)

    def _is_held(self, count: int, last: int) -> bool:
        return count >= _PINNED_AFTER and self._window - last < _RETRY_AFTER

    def busy(self, hva: npt.NDArray[np.uint64]) -> None:
        """Note pages that were tried in this window and would not move."""
        for page in hva.tolist():
            count, last = self._failures.pop(page, (0, -1))
            self._failures[page] = (count + (last != self._window), self._window)
        while len(self._failures) > self._most_pages:
            del self._failures[next(iter(self._failures))]

    def moved(self, hva: npt.NDArray[np.uint64]) -> None:
        """Forget pages that moved after all."""
        if self._failures:
            for page in set(hva.tolist()) & self._failures.keys():
                del self._failures[page]
