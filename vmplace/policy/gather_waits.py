"""Do vCPUs that were tied to a node wait there for a CPU, because others came that vmplace knows nothing of?

1. What is usual is known from before they were tied, or by the first samples if an earlier agent did that.
2. What waits cost beyond that adds up, and fades within ``FADE_S``.  Beyond ``MOST_LOST_S`` the tie ends: 6 %
   for long, or 20 % for 45 s.  To be remote for a while costs about as much.
3. Usual waits that nobody sees any more are forgotten within ``FORGET_S``.

Example: a guest that waits for as long as it runs, since a second.

>>> def since(waits, seconds):
...     samples = tuple(CostSample(1.0 + second, 1.0, waits=waits) for second in range(seconds))
...     return WaitWatch(usual=0.0).after(samples)
>>> [round(since(1.0, seconds).lost_s, 1) for seconds in (1, 5)]
[1.0, 4.9]
>>> since(1.0, 8).is_over, since(0.04, 600).is_over
(True, False)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from statistics import fmean

from vmplace.policy.plan import CostSample
from vmplace.policy.trial import AFTER

FADE_S, FORGET_S = 120.0, 600.0
MOST_LOST_S = 0.06 * FADE_S
LONGEST_S = 15.0
"""A sample tells of so long before it at most."""


@dataclass(frozen=True)
class WaitWatch:
    """``usual``: ns of waiting for each ns of running, None: not known yet; ``lost_s``: lost beyond that.

    ``seen_s``: when the newest sample that was taken in ended.
    """

    usual: float | None = None
    lost_s: float = 0.0
    seen_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Tell whether waits cost too much."""
        return self.lost_s >= MOST_LOST_S

    def after(self, samples: Sequence[CostSample]) -> "WaitWatch":
        """Return the watch with samples that are newer than those before."""
        new = [(one.at_s, one.waits) for one in samples if one.at_s > self.seen_s and one.waits is not None]
        if self.usual is None:
            usual = fmean(waits for _, waits in new) if len(new) >= AFTER else None
            return self if usual is None else WaitWatch(usual, 0.0, new[-1][0])
        usual, lost_s, seen_s = self.usual, self.lost_s, self.seen_s
        for at_s, waits in new:
            passed_s = min(at_s - seen_s, LONGEST_S)
            more = (1 + waits) / (1 + usual) - 1
            lost_s = max(lost_s * exp(-passed_s / FADE_S) + more * passed_s, 0.0)
            usual += min(waits - usual, 0.0) * passed_s / FORGET_S
            seen_s = at_s
        return WaitWatch(usual, lost_s, seen_s)


def known_waits(samples: Sequence[CostSample]) -> float | None:
    """Return the mean waits of samples; None where one does not tell."""
    waits = [one.waits for one in samples if one.waits is not None]
    return fmean(waits) if waits and len(waits) == len(samples) else None
