"""Which nodes are tight?  Pure: pressure over time, with hysteresis, for schedulers that ask seldom.

A node gets tight when it was at ``tight_from`` or above for ``hold_s`` without a break, and free again
when it was below ``free_below`` for as long.  Between the two nothing changes: what schedulers read must
not flap with each window.

Time that nobody saw counts if it is as short as ``gap_s``: one answer that did not come proves nothing.
A longer time is a break.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

TIGHT_FROM, FREE_BELOW, HOLD_S = 0.8, 0.6, 600.0
LATE_S = 30.0


@dataclass(frozen=True)
class SlowState:
    """What is known; ``since_s[nid]``: since when a node says the opposite of what holds for it;
    ``looked_s``: when its pressure was last known."""

    tight: frozenset[int] = frozenset()
    since_s: Mapping[int, float] = field(default_factory=dict)
    tight_from: float = TIGHT_FROM
    free_below: float = FREE_BELOW
    hold_s: float = HOLD_S
    gap_s: float = math.inf
    looked_s: float = -math.inf

    def asked_each(self, interval_s: float) -> "SlowState":
        """Return the state for who asks so often: one question may remain without an answer."""
        return replace(self, gap_s=2 * interval_s + LATE_S)

    def after(self, now_s: float, pressure: Mapping[int, float]) -> "SlowState":
        """Return the state once these pressures are known; nodes that are not given stay as they are."""
        is_broken = now_s - self.looked_s > self.gap_s
        tight, since = set(self.tight), {} if is_broken else dict(self.since_s)
        for nid, value in pressure.items():
            turns = value < self.free_below if nid in tight else value >= self.tight_from
            if not turns:
                since.pop(nid, None)
            elif now_s - since.setdefault(nid, now_s) >= self.hold_s:
                tight ^= {nid}
                del since[nid]
        return replace(self, tight=frozenset(tight), since_s=since, looked_s=now_s)
