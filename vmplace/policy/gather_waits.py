"""Do vCPUs that were tied to a node wait there for a CPU, because others came that vmplace knows nothing of?

1. What is usual is known from the trial: waits before the guest was tied, or those with which it was judged,
   whichever are longer.  Of a tie that an earlier agent made, the first ``MEAN_S`` tell it.
2. A tie ends if the guest's time grows by ``MOST`` beyond that, on the mean of some minutes.  So neither
   bursts nor chance end it, and who has to share each CPU with a job gets away in a minute and a half.

Limits: what grows by less stays.

Example: a guest that waits for as long as it runs, and never did before.

>>> def since(waits, seconds):
...     samples = tuple(CostSample(1.0 + second, 1.0, waits=waits) for second in range(seconds))
...     return WaitWatch.of(0.0, 0.0).after(samples)
>>> since(1.0, 60).is_over, since(1.0, 90).is_over, since(0.2, 3600).is_over
(False, True, False)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev

from vmplace.policy.plan import CostSample

MEAN_S, MOST = 300.0, 0.25
LONGEST_S = 15.0
"""A sample tells of so long before it at most."""
LEAST_KNOWN = 3
"""Samples whose waits are known: fewer say nothing."""
ERRORS = 2.0
"""Usual waits may be so many standard errors above what few samples had."""


@dataclass(frozen=True)
class WaitWatch:
    """``usual``: ns of waiting for each ns of running, None: not known yet.

    ``mean``: of waits in the last ``known_s``, MEAN_S at most; ``seen_s``: when the newest sample ended.
    """

    usual: float | None = None
    mean: float = 0.0
    known_s: float = 0.0
    seen_s: float = 0.0

    @classmethod
    def of(cls, usual: float | None, now_s: float) -> "WaitWatch":
        """Return a watch that begins now, as if waits had been as usual so far."""
        return cls(seen_s=now_s) if usual is None else cls(usual, usual, MEAN_S, now_s)

    @property
    def excess(self) -> float:
        """Return by which share the guest's time has grown."""
        return 0.0 if self.usual is None else (1 + self.mean) / (1 + self.usual) - 1

    @property
    def is_over(self) -> bool:
        """Tell whether waits cost too much."""
        return self.excess >= MOST

    def after(self, samples: Sequence[CostSample]) -> "WaitWatch":
        """Return the watch with samples that are newer."""
        watch = self
        for one in samples:
            if one.at_s > watch.seen_s and one.waits is not None:
                watch = watch._after(one.at_s, one.waits)
        return watch

    def _after(self, at_s: float, waits: float) -> "WaitWatch":
        passed_s = min(at_s - self.seen_s, LONGEST_S)
        known_s = min(self.known_s + passed_s, MEAN_S)
        mean = self.mean + (waits - self.mean) * passed_s / known_s
        usual = mean if self.usual is None and known_s >= MEAN_S else self.usual
        return replace(self, usual=usual, mean=mean, known_s=known_s, seen_s=at_s)


def usual_waits(*some: Sequence[CostSample]) -> float | None:
    """Return what is usual by the samples of these times, the longest of their waits; None: not known."""
    known = [waits for waits in map(known_waits, some) if waits]
    return max((fmean(one) + ERRORS * stdev(one) / sqrt(len(one)) for one in known), default=None)


def known_waits(samples: Sequence[CostSample]) -> list[float] | None:
    """Return the waits that are known; None if these are too few."""
    waits = [one.waits for one in samples if one.waits is not None]
    return waits if len(waits) >= LEAST_KNOWN else None
