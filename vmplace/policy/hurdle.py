"""How many times its cost must a change promise?  That follows from what earlier ones of its kind earned.

1. Moves, and copies, are trials: what each cost, and what it earned within a while (guard.py).  The hurdle is
   the root of what they cost by what they earned: below 1 where they earned several times their cost.
2. Small trials that lose hardly change that ratio, and it alone would let a guest lose by them time and
   again.  So each that earned less than it cost raises the hurdle by a factor, the more the more it cost
   (``caution``), and one that earned more lowers it again.
3. Caution fades: what did not pay in one phase of a program may pay in the next.

>>> lost, good = Record().with_trial(2e5, 1e5), Record().with_trial(4e6, 16e6)
>>> round(Record().hurdle, 2), round(lost.hurdle, 2), round(good.hurdle, 2)
(2.0, 2.36, 0.56)
"""

from dataclasses import dataclass, replace

import numpy as np

RANGE = (0.25, 8.0)
PRIOR_NS = (12e5, 3e5)
"""Cost and gain that trials are taken to have had before the first one.

Trials below them do not sway the ratio by much.  The hurdle begins at two: what a guest that is hardly known
seems to gain is partly chance, and its program may end before a move paid."""
FORGETTING = 0.7
"""Share of earlier trials' cost and gain that still counts when the next one ends."""
WHOLE_NS = 3e5
"""A trial that cost so much, or more, changes the caution by the root of its cost by its gain,"""
MOST_RATIO = 4.0
"""which counts up to this, or its inverse."""
MOST_CAUTION = 4.0
FADE_NS = 1.2e9
"""Caution halves, as a power, in so much of the planner's time: a minute of a guest's."""


@dataclass(frozen=True)
class Record:
    """What trials of one kind cost and gained so far (ns), those of late most, and what follows."""

    cost_ns: float = 0.0
    gain_ns: float = 0.0
    caution: float = 1.0

    @property
    def hurdle(self) -> float:
        """Return how many times its cost a change of this kind must promise."""
        prior_cost, prior_gain = PRIOR_NS
        ratio = (self.cost_ns + prior_cost) / (self.gain_ns + prior_gain)
        return float(np.clip(np.sqrt(ratio) * self.caution, *RANGE))

    def with_trial(self, cost_ns: float, gain_ns: float) -> "Record":
        """Return the record once a trial is over."""
        gain_ns = max(gain_ns, 0.0)
        ratio = np.clip(cost_ns / max(gain_ns, cost_ns / MOST_RATIO, 1e-9), 1 / MOST_RATIO, MOST_RATIO)
        caution = self.caution * ratio ** (min(cost_ns / WHOLE_NS, 1.0) / 2)
        return Record(
            FORGETTING * self.cost_ns + cost_ns,
            FORGETTING * self.gain_ns + gain_ns,
            float(np.clip(caution, 1.0, MOST_CAUTION)),
        )

    def after(self, span_ns: float) -> "Record":
        """Return the record so much later."""
        return replace(self, caution=float(self.caution ** (0.5 ** (span_ns / FADE_NS))))
