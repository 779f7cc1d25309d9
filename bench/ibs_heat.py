"""How well do samples rank the hottest pages of a guest, and how well could as many at best?

1. The hottest tenth of the pages, or 2 MiB blocks, that the guest accessed meanwhile, by exact counts.
2. Spearman's correlation of their exact counts with their samples; the mean of all guests.
3. For the control samples are drawn from the exact counts: they have no error but that they are few.

Pages of the host are left out: what interrupts for samples access is counted, and cannot be sampled.
"""

from dataclasses import dataclass
from statistics import mean

import numpy as np
from scipy.stats import spearmanr

from bench.ibs_samples import Ints, Samples

HOT_SHARE = 0.1
SEED = 1
DRAWS = 5
STEPS_PER_DOUBLING = 4
DOUBLINGS = 8
"""So far perfect samples are drawn: up to 256 times as many as there were real ones."""


@dataclass(frozen=True)
class _Hottest:
    """Accesses and samples of a guest's hottest pages or blocks; the last entry: all else on the host."""

    exact: Ints
    seen: Ints

    def correlation(self, seen: Ints) -> float:
        """Return Spearman's for the pages."""
        return float(spearmanr(self.exact[:-1], seen[:-1]).statistic)

    def of_perfect(self, count: int) -> float:
        """Return what as many samples without error reach."""
        shares = self.exact / self.exact.sum()
        draws = np.random.default_rng(SEED).multinomial(count, shares, size=DRAWS)
        return mean(self.correlation(draw) for draw in draws)

    def of_some(self, count: int) -> float:
        """Return what so many of the samples reach."""
        draws = np.random.default_rng(SEED).multivariate_hypergeometric(self.seen, count, size=DRAWS)
        return mean(self.correlation(draw) for draw in draws)


def rank_correlation(samples: Samples, size: str) -> tuple[float, float]:
    """Return the correlation for pages of ``size``, and that of as many perfect samples."""
    guests = _hottest(samples, size)
    count = samples.accesses
    return mean(one.correlation(one.seen) for one in guests), mean(one.of_perfect(count) for one in guests)


def samples_for(goal: float, samples: Samples) -> tuple[int | None, int | None]:
    """Return how many samples rank 4 KiB pages so well, and how many perfect ones would; None: more."""
    guests = _hottest(samples, "4 KiB")
    few = [_scaled(samples.accesses, -step) for step in reversed(range(DOUBLINGS * STEPS_PER_DOUBLING))]
    many = [_scaled(samples.accesses, step) for step in range(1, DOUBLINGS * STEPS_PER_DOUBLING + 1)]
    of_seen = (n for n in few if mean(one.of_some(n) for one in guests) >= goal)
    of_perfect = (n for n in few + many if mean(one.of_perfect(n) for one in guests) >= goal)
    return next(of_seen, None), next(of_perfect, None)


def _scaled(count: int, steps: int) -> int:
    return int(count * 2 ** (steps / STEPS_PER_DOUBLING))


def _hottest(samples: Samples, size: str) -> list[_Hottest]:
    exact, seen = samples.exact.counts.sum(axis=0), samples.counts.sum(axis=0)
    guests = []
    for ram in samples.guests:
        unit = ram.units[size]
        mine, sampled = (np.bincount(unit, of[ram.pages]).astype(np.int64) for of in (exact, seen))
        hot = np.argsort(mine, kind="stable")[::-1][: int(np.count_nonzero(mine) * HOT_SHARE)]
        with_rest = (
            np.append(of[hot], all_of.sum() - of[hot].sum())
            for of, all_of in ((mine, exact), (sampled, seen))
        )
        guests.append(_Hottest(*with_rest))
    return guests
