"""Of which pages has KVM refused copies, and for how long is it not asked again?

What was refused is most likely refused again: pages that are no anonymous memory, or that are written most of
the time.  So a page is tried once more at once, as most are busy for a moment only, and then after a while,
twice as long each time that a page of its 2 MiB block is refused, until all of them have copies.
"""

import numpy as np

from vmplace.actuation.replica_patience import FIRST_NS, LONGEST_NS
from vmplace.sampling.page_set import NO_PAGES, PageSet

MOST_TIMES = 20
"""Beyond this many the wait is the longest anyhow."""


class Refusals:
    """The pages of one guest that were refused when they were last asked for; the rest is by their blocks."""

    def __init__(self) -> None:
        self._pages = self._waiting = NO_PAGES
        self._times, self._until_ns = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def note(self, done: PageSet, refused: PageSet, now_ns: int) -> None:
        """Note which pages have copies now, and which KVM refused."""
        left = (self._pages - done) | refused
        if left is self._pages and not len(refused):
            return
        row, known = self._pages.rows_of(left.blocks)
        times, until_ns = np.zeros((2, len(left.blocks)), np.int64)
        times[known], until_ns[known] = self._times[row[known]], self._until_ns[row[known]]
        again = np.searchsorted(left.blocks, refused.blocks)
        waits_ns = np.where(times > 0, np.minimum(FIRST_NS << np.maximum(times - 1, 0), LONGEST_NS), 0)
        until_ns[again], times[again] = now_ns + waits_ns[again], np.minimum(times[again] + 1, MOST_TIMES)
        # What nobody asked for in so long is forgotten.
        kept = until_ns + LONGEST_NS > now_ns
        self._pages, self._times, self._until_ns = left.rows(kept), times[kept], until_ns[kept]

    def waiting(self, now_ns: int) -> PageSet:
        """Return of which pages no copies are to be made for now."""
        waiting = self._pages.rows(self._until_ns > now_ns)
        if not waiting.is_same(self._waiting):
            self._waiting = waiting
        return self._waiting
