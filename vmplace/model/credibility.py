"""How hot is a page that was sampled once, or never?  Its own samples and its neighbours', each by credit.

1. Pages lie in runs, runs in blocks: each unit's mean is drawn towards the estimate of the unit around it.
2. How far its own samples are believed follows from the samples: chance alone scatters the units of a block
   by so much; what they scatter beyond that is a difference between them.  A block whose pages differ no more
   than chance explains is taken to be even, and a lone sample in it says nothing of its page.

Example: four pages with 8, 0, 0 and 0 samples differ by far more than chance explains, so each is believed;
four with 2 each are even.  A lone sample among four pages is no difference: each gets a quarter of it.

>>> counts = np.array([[8.0], [0.0], [0.0], [0.0], [2.0], [2.0], [2.0], [2.0]])
>>> credible(counts, counts, [np.array([0, 0, 0, 0, 1, 1, 1, 1])]).T.tolist()
[[7.25, 0.25, 0.25, 0.25, 2.0, 2.0, 2.0, 2.0]]
>>> lone = np.array([[1.0], [0.0], [0.0], [0.0]])
>>> credible(lone, lone, [np.zeros(4, int)]).T.tolist()
[[0.25, 0.25, 0.25, 0.25]]

Source: Bühlmann and Straub (ASTIN Bulletin, 1970), credibility: the best linear estimate of a unit's rate
under a prior that is itself estimated from the units around.
Limits: units of one block are taken to be exchangeable; each node's accesses are estimated by themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix

Indexes = npt.NDArray[np.intp]


def credible(
    counts: Matrix, variances: Matrix, units: Sequence[Indexes], blocks: Matrix | None = None
) -> Matrix:
    """Return the estimated rates [P, N] of pages that were counted ``counts[P, N]`` times.

    ``variances[P, N]``: an unbiased estimate of what chance alone does to each count (for plain samples the
    count itself).  ``units``: the number of the unit that each page lies in, the smallest units first, each
    unit inside one of the next.  ``blocks``: the estimate [U, N] of a page of each of the largest units,
    where others tell of it, too (pooled_samples.py); by default it is their mean.
    """
    block = _Units.of(units[-1])
    around = block.means(counts)
    estimate = around if blocks is None else blocks[units[-1]]
    outer = block.sizes()
    for inner in [*(_Units.of(one) for one in units[-2::-1]), None]:
        # The pages themselves are units of one.
        mean, sizes = (counts, np.ones((1, 1))) if inner is None else (inner.means(counts), inner.sizes())
        credit = _credit((mean - around) ** 2, variances / sizes, 1 - sizes / outer, block)
        estimate, around, outer = estimate + credit * (mean - estimate), mean, sizes
    return estimate


@dataclass(frozen=True)
class _Units:
    """The number of each page's unit, and how many pages each unit has, 1 at least [U, 1]."""

    number: Indexes
    pages: Matrix

    @classmethod
    def of(cls, number: Indexes) -> "_Units":
        """Return units by the number of each page's."""
        return cls(number, np.maximum(np.bincount(number), 1).astype(np.float64)[:, None])

    def sizes(self) -> Matrix:
        """Return, for each page, how many pages its unit has."""
        sizes: Matrix = self.pages[self.number]
        return sizes

    def by_unit(self, values: Matrix) -> Matrix:
        """Return the mean over each unit."""
        sums = np.stack([np.bincount(self.number, weights=one) for one in values.T], axis=1)
        means: Matrix = sums / self.pages
        return means

    def means(self, values: Matrix) -> Matrix:
        """Return, for each page, the mean over its unit."""
        means: Matrix = self.by_unit(values)[self.number]
        return means


def _credit(scatter: Matrix, chance: Matrix, alone: Matrix, block: _Units) -> Matrix:
    """Return how far units are believed, 0 to 1: by block, as units of one block are taken to be alike in it.

    ``scatter``: squared distances of units from their surroundings, of which they are part: ``alone`` is the
    share of the surroundings that is not the unit's own.
    """
    due = block.by_unit(chance)
    beyond = np.maximum(block.by_unit(scatter - chance * alone), 0.0)
    beyond = np.divide(beyond, block.by_unit(alone), out=np.zeros_like(due), where=beyond > 0)
    credit: Matrix = np.divide(beyond, beyond + due, out=np.zeros_like(due), where=beyond > 0)[block.number]
    return credit
