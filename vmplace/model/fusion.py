"""How hot is each page for each node, if one source misses nothing and another one counts?

Accessed bits tell for certain which nodes touched a page, but once a window however often; hint faults add a
rough rate.  Samples (IBS) count accesses, but of most pages there is none.

1. What the first source expects of a page and node (windows with a touch, or a rate) is where to begin.
   None: that node does not use the page, unless it was sampled.
2. How many samples an expected access is worth is learnt: by class, as bits saturate (all that were touched
   in as many windows, within a factor of two), then by 2 MiB block.  Each is drawn towards the whole, as if
   ``FEW`` samples there had said what the whole says.
3. The page's own samples: Poisson, with a Gamma prior around what 1 and 2 expect.  How much pages differ (the
   prior's shape) is learnt from how many have no sample: the more alike they are, the less their own counts.

The confidence is how many samples the answer is worth: its relative standard error is one by their root.

Example: bits expect 4 touches of two pages and 1 of two others; samples found 12, 4, 0 and 0.  The pages of
equal bits differ threefold, so samples count for much (a small shape); those without one keep little.

>>> bits, samples = np.array([[4.0], [4.0], [1.0], [1.0]]), np.array([[12.0], [4.0], [0.0], [0.0]])
>>> both = fused(bits, samples, np.zeros(4, int))
>>> both.heat.T.round(2).tolist(), both.relative_error.T.round(2).tolist(), round(both.shape, 2)
([[7.17, 2.54, 0.15, 0.15]], [[0.28, 0.48, 1.58, 1.58]], 0.4)

Source: empirical Bayes for Poisson rates (Robbins, Berkeley Symposium 1956; Efron and Hastie, Computer Age
Statistical Inference, 6.1).  Carrefour (ASPLOS'13, section 3.2.2) takes pages with two samples or more at
their word, and knows nothing of the others.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix

Groups = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]
FEW = 2.0
MOST_UNLIKE, MOST_ALIKE, STEPS = 0.01, 64.0, 12
"""Bounds of the shape, and how often their distance is halved: to within a third of a per cent."""
CLASSES_PER_OCTAVE = 8


@dataclass(frozen=True)
class Fused:
    """By page and node [P, N]: ``heat`` in units of what was expected, and the ``samples`` behind it.

    ``shape``: of the prior; it counts as so many samples.
    """

    heat: Matrix
    samples: Matrix
    shape: float

    @property
    def relative_error(self) -> Matrix:
        """Return the relative standard error of each heat: that of its Gamma distribution."""
        error: Matrix = 1 / np.sqrt(self.shape + self.samples)
        return error


def fused(expected: Matrix, samples: Matrix, block: Groups, totals: Floats | None = None) -> Fused:
    """Return what both sources together tell; ``block[P]`` numbers the pages' 2 MiB blocks.

    ``expected`` [P, N]: 0 where the source that misses nothing saw no touch.  ``totals`` [N]: what counters
    say each node accessed; without them the samples tell.  Without a sample the heat is what was expected.
    """
    if not samples.any():
        return Fused(expected, samples, FEW)
    least = float(expected[expected > 0].min(initial=np.inf))
    # A sample of what the bits do not show: touched between two harvests.
    begin = np.where((expected == 0) & (samples > 0), least if np.isfinite(least) else 1.0, expected)
    known = begin > 0
    mean, seen = _prior_samples(begin[known], samples[known], block[np.nonzero(known)[0]]), samples[known]
    shape = _shape(mean, seen)
    heat = np.zeros_like(begin)
    heat[known] = mean * (shape + seen) / (shape + mean)
    total = heat.sum(axis=0)
    wanted = total * (begin.sum() / total.sum()) if totals is None else totals
    scale = np.divide(wanted, total, out=np.ones_like(total), where=total > 0)
    return Fused(heat * scale, samples, shape)


def _prior_samples(expected: Floats, seen: Floats, block: Groups) -> Floats:
    """Return how many samples each entry ought to have, by its class and its block."""
    mean: Floats = expected * (seen.sum() / expected.sum())
    for group in (_octave(expected), block):
        mean = mean * _ratio(seen, mean, group)
    return mean


def _octave(values: Floats) -> Groups:
    octave = np.floor(np.log2(values)).astype(np.int64)
    above: npt.NDArray[np.int64] = octave - octave.min(initial=0)
    return above


def _ratio(seen: Floats, mean: Floats, group: Groups) -> Floats:
    """Return for each entry how many more samples than expected its group has."""
    counted, expected = np.bincount(group, weights=seen), np.bincount(group, weights=mean)
    ratio: Floats = ((counted + FEW) / (expected + FEW))[group]
    return ratio


def _shape(mean: Floats, seen: Floats) -> float:
    """Return the shape with which a Gamma-Poisson mixture has as many zeros as there are.

    The larger the shape, the fewer.  By moments, few very hot pages would speak for all.
    """
    zeros, low, high = float(np.count_nonzero(seen == 0)), MOST_UNLIKE, MOST_ALIKE
    # Entries whose means differ by less than a tenth count together.
    classes = np.floor(np.log2(mean) * CLASSES_PER_OCTAVE)
    _, first, count = np.unique(classes, return_index=True, return_counts=True)
    means = mean[first]
    for _ in range(STEPS):
        shape = float(np.sqrt(low * high))
        expected = float((count * np.exp(-shape * np.log1p(means / shape))).sum())
        low, high = (shape, high) if expected > zeros else (low, shape)
    return float(np.sqrt(low * high))
