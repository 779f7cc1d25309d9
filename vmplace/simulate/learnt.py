"""What did the source show of one guest's pages so far?

1. Accesses seen are summed per page and node, and halved every half life: what was seen in the
   last tens of milliseconds is expected to come once more.
2. A page counts as written for a while after a write; each collapse of its copies makes the while longer
   (Carrefour, ASPLOS'13, section 3.3.2, gives a page up after five collapses).
3. A source that samples sees few pages: a page that was sampled k times gets a share of its heat from the
   mean of its 2 MiB block, as if it had been sampled PRIOR times there.
4. Where another source tells who touches a page, samples say how hot it is (model/fusion.py).
"""

import numpy as np

from vmplace.model.fusion import fused
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import Bools, Indexes
from vmplace.simulate.source_views import Seen
from vmplace.simulate.trace import Ints

HALF_LIFE_NS = 120e6
QUIET_NS = 30e6
COLLAPSE_FACTOR = 4.0
PRIOR = 2.0


class Learnt:
    """Page statistics of a guest with P pages on N nodes; ``block[P]`` numbers the pages' 2 MiB blocks."""

    def __init__(self, npages: int, nodes: int, block: Ints, half_life_ns: float = HALF_LIFE_NS) -> None:
        self._half_life_ns = half_life_ns
        self._sum = np.zeros((npages, nodes))
        self.samples: Matrix | None = None
        self.samples_recent: Matrix | None = None
        self._block = block
        self._certain = False
        self._quiet_ns = np.full(npages, np.inf)
        self._patience_ns = np.full(npages, QUIET_NS)
        self._smoothed: Matrix | None = None
        self.recent: Matrix | None = None
        self.read_ratio: float | None = None
        self.sharing: Matrix | None = None

    def absorb(self, seen: Seen, span_ns: float) -> None:
        """Add what a look showed of the ``span_ns`` before it."""
        kept = 0.5 ** (span_ns / self._half_life_ns)
        self._sum *= kept
        self._sum += seen.heat
        self.recent, self.read_ratio, self._smoothed = seen.heat, seen.read_ratio, None
        self._quiet_ns += span_ns
        self._quiet_ns[seen.written] = 0.0
        self.samples_recent, self._certain = seen.samples, seen.certain
        if seen.samples is not None:
            before = 0.0 if self.samples is None else self.samples * kept
            self.samples = before + seen.samples

    def share(self, sharing: Matrix) -> None:
        """Add to the accesses of vCPUs to the same pages, aged as in kMAF (PACT'14, section 3.4.2)."""
        self.sharing = sharing if self.sharing is None else 0.75 * self.sharing + sharing

    def moved(self, pages: Indexes) -> None:
        """Note that pages were moved: what is known of them counts half (kMAF, PACT'14, section 3.3)."""
        self._sum[pages] *= 0.5
        if self.samples is not None:
            self.samples[pages] *= 0.5
        self._smoothed = None

    def collapsed(self, pages: Indexes) -> None:
        """Note that the copies of pages were dropped, because they were written."""
        self._quiet_ns[pages] = 0.0
        self._patience_ns[pages] *= COLLAPSE_FACTOR

    def suspect(self) -> Bools:
        """Return which pages may be about to be written."""
        late: Bools = self._quiet_ns < self._patience_ns
        return late

    def heat(self) -> Matrix:
        """Return the accesses [P, N] that are expected still to come."""
        if self.samples is None:
            return self._sum
        if self._smoothed is None and self._certain:
            self._smoothed = fused(self._sum, self.samples, self._block, self._sum.sum(axis=0)).heat
        elif self._smoothed is None:
            self._smoothed = self._shrunk(self.samples.sum(axis=1))
        return self._smoothed

    def _shrunk(self, samples: Matrix) -> Matrix:
        """Return each page's heat, drawn towards its block's mean the more, the fewer its samples."""
        blocks = int(self._block.max()) + 1
        pages = np.bincount(self._block, minlength=blocks).astype(np.float64)
        mean = np.stack(
            [np.bincount(self._block, weights=one, minlength=blocks) / pages for one in self._sum.T], axis=1
        )
        own = samples / (samples + PRIOR)
        shrunk: Matrix = own[:, None] * self._sum + (1 - own)[:, None] * mean[self._block]
        return shrunk
