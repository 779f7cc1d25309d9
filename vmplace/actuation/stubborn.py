"""Which pages would not move again and again?  Pure.

A page in use by the kernel (I/O under way) is busy now and moves in a later window; one that is busy three
times, about a second apart or more, is held by somebody (VFIO, RDMA, vhost) and counts as pinned: it is tried
again only after 64 s.  At most ``most_pages`` are remembered; beyond that the oldest are forgotten.
"""

import math

import numpy as np
import numpy.typing as npt

_PINNED_AFTER = 3
_APART_S = 0.95
_RETRY_AFTER_S = 63.5
"""Windows of a second last a little longer, and the one at about 64 s tries again."""


class StubbornPages:
    """The memory of one guest's pages that would not move."""

    def __init__(self, *, most_pages: int = 16384) -> None:
        self._most_pages = most_pages
        self._now_s = 0.0
        self._failures: dict[int, tuple[int, float]] = {}

    def start_window(self, now_s: float) -> None:
        """Begin a window, at seconds of any clock."""
        self._now_s = now_s

    def pinned(self, hva: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Tell for each page whether it counts as pinned in this window."""
        held = [p for p, one in self._failures.items() if self._is_held(*one)]
        return np.isin(hva, np.array(held, np.uint64)) if held else np.zeros(len(hva), bool)

    def _is_held(self, count: int, counted_s: float) -> bool:
        return count >= _PINNED_AFTER and self._now_s - counted_s < _RETRY_AFTER_S

    def busy(self, hva: npt.NDArray[np.uint64]) -> None:
        """Note pages that were tried in this window and would not move."""
        for page in hva.tolist():
            count, counted_s = self._failures.pop(page, (0, -math.inf))
            counts = self._now_s - counted_s >= _APART_S
            self._failures[page] = (count + 1, self._now_s) if counts else (count, counted_s)
        while len(self._failures) > self._most_pages:
            del self._failures[next(iter(self._failures))]

    def moved(self, hva: npt.NDArray[np.uint64]) -> None:
        """Forget pages that moved after all."""
        if self._failures:
            for page in set(hva.tolist()) & self._failures.keys():
                del self._failures[page]
