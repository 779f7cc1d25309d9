"""What did the source show of one guest's pages so far?

1. Accesses seen are summed per page and node, and halved every half life: what was seen in the
   last tens of milliseconds is expected to come once more.
2. A page counts as written for a while after a write; each collapse of its copies makes the while longer
   (Carrefour, ASPLOS'13, section 3.3.2, gives a page up after five collapses).
3. A source that samples sees few pages: its counts are drawn towards those of the pages around, as far as
   chance explains what they differ by (``credible``).  Around is what lies near and on the same node: the
   node tells who touched the pages first.
4. It misses most writes, too: a page counts as written if at least one write is to be expected by its
   and its neighbours' samples.
5. Where another source tells who touches and writes a page, samples say how hot it is (``fused``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vmplace.model.credibility import credible
from vmplace.model.fusion import fused
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import ABSENT, Bools, Indexes, NodeIndexes, row_sums
from vmplace.simulate.source_views import SourceView
from vmplace.simulate.trace import Ints

HALF_LIFE_NS = 120e6
QUIET_NS = 30e6
COLLAPSE_FACTOR = 4.0


@dataclass
class Fading:
    """Counts [P, N] that fade, and an unbiased estimate of the variance that chance gives them."""

    total: Matrix
    variance: Matrix

    @classmethod
    def zeros(cls, npages: int, nodes: int) -> "Fading":
        """Return counts of nothing."""
        return cls(np.zeros((npages, nodes)), np.zeros((npages, nodes)))

    def fade(self, kept: float) -> None:
        """Let ``kept`` be left of all counts."""
        self.total *= kept
        self.variance *= kept * kept

    def add(self, counts: Matrix, each: Matrix) -> None:
        """Add samples that come to ``counts``; ``each`` is what one of them stands for."""
        self.total += counts
        self.variance += counts * each


class Learnt:
    """Page statistics of a guest with P pages on N nodes.

    ``near``: the numbers of the units that each page lies in, the smallest units first (``credible``).
    """

    def __init__(
        self, npages: int, nodes: int, near: Sequence[Ints], half_life_ns: float = HALF_LIFE_NS
    ) -> None:
        self._half_life_ns = half_life_ns
        self._seen, self._writes = Fading.zeros(npages, nodes), Fading.zeros(npages, 1)
        self.samples: Matrix | None = None
        self.samples_recent: Matrix | None = None
        self._near = near
        self._certain = False
        self._quiet_ns = np.full(npages, np.inf)
        self._patience_ns = np.full(npages, QUIET_NS)
        self._estimate: tuple[Matrix, Matrix] | None = None
        self.recent: Matrix | None = None
        self.read_ratio: float | None = None
        self.sharing: Matrix | None = None

    def absorb(self, seen: SourceView, span_ns: float) -> None:
        """Add what a look showed of the ``span_ns`` before it."""
        kept = 0.5 ** (span_ns / self._half_life_ns)
        self.recent, self.read_ratio, self._estimate = seen.heat, seen.read_ratio, None
        self._quiet_ns += span_ns
        self._quiet_ns[seen.written] = 0.0
        self.samples_recent, self._certain = seen.samples, seen.certain
        self._seen.fade(kept)
        if seen.samples is None or seen.certain:
            self._seen.total += seen.heat
        if seen.samples is None:
            return
        self.samples = seen.samples + (0.0 if self.samples is None else self.samples * kept)
        if not seen.certain:
            self._add_samples(seen, seen.samples, span_ns)

    def _add_samples(self, seen: SourceView, samples: Matrix, span_ns: float) -> None:
        self._seen.add(seen.heat, _each(seen.heat, samples))
        each = _each(row_sums(seen.heat), row_sums(samples))[:, None]
        # As long as one write that was seen makes its page suspect.
        self._writes.fade(0.5 ** (span_ns / QUIET_NS))
        self._writes.add(seen.written[:, None] * each, each)

    @property
    def shown(self) -> Matrix:
        """Return the accesses [P, N] that the source showed, faded."""
        return self._seen.total

    def share(self, sharing: Matrix) -> None:
        """Add to the accesses of vCPUs to the same pages, aged as in kMAF (PACT'14, section 3.4.2)."""
        self.sharing = sharing if self.sharing is None else 0.75 * self.sharing + sharing

    def moved(self, pages: Indexes) -> None:
        """Note that pages were moved: what is known of them counts half (kMAF, PACT'14, section 3.3)."""
        self._seen.total[pages] *= 0.5
        self._seen.variance[pages] *= 0.25
        if self.samples is not None:
            self.samples[pages] *= 0.5
        self._estimate = None

    def ran_on(self, shift: Matrix) -> None:
        """Note that ``shift[k, j]`` of what ran on node k runs on node j now, and accesses pages there."""
        self._seen = Fading(self._seen.total @ shift, self._seen.variance @ shift)
        if self.samples is not None:
            self.samples = self.samples @ shift
        self._estimate = None

    def collapsed(self, pages: Indexes) -> None:
        """Note that the copies of pages were dropped, because they were written."""
        self._quiet_ns[pages] = 0.0
        self._patience_ns[pages] *= COLLAPSE_FACTOR

    def suspect(self, node: NodeIndexes) -> Bools:
        """Return which pages, now on ``node``, may be about to be written."""
        late: Bools = self._quiet_ns < self._patience_ns
        return late if self.samples is None else late | (self._estimated(node, self.samples)[1][:, 0] >= 1.0)

    def heat(self, node: NodeIndexes) -> Matrix:
        """Return the accesses [P, N] that are expected still to come to the pages, now on ``node``."""
        return self._seen.total if self.samples is None else self._estimated(node, self.samples)[0]

    def _estimated(self, node: NodeIndexes, samples: Matrix) -> tuple[Matrix, Matrix]:
        """Return the accesses [P, N] and the writes [P, 1] that the samples of pages in memory stand for."""
        if self._estimate is None and self._certain:
            total = self._seen.total
            self._estimate = fused(total, samples, self._near[-1], total.sum(axis=0)).heat, self._writes.total
        elif self._estimate is None:
            here = np.flatnonzero(node != ABSENT)
            places = int(node.max(initial=0)) + 3
            units = [one[here].astype(np.intp) * places + node[here] + 2 for one in self._near]
            both = self._seen, self._writes
            estimate = np.zeros((len(node), sum(one.total.shape[1] for one in both)))
            counts, variances = (
                np.hstack([getattr(one, name)[here] for one in both]) for name in ("total", "variance")
            )
            estimate[here] = credible(counts, variances, units)
            self._estimate = np.ascontiguousarray(estimate[:, :-1]), estimate[:, -1:]
        return self._estimate


def _each(counts: Matrix, samples: Matrix) -> Matrix:
    """Return what one of the samples stands for; 0 where there are none."""
    each: Matrix = np.divide(counts, samples, out=np.zeros_like(counts), where=samples > 0)
    return each
