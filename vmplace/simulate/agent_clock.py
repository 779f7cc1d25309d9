"""When does the agent look?  It wakes often, reads counters, and looks at pages only when it may pay.

1. It wakes every ``WAKE_NS``: 100 ms (kMAF, PACT'14, section 3.4) of a program that runs ``CLOCK_SCALE``
   times
   as long as its trace.
2. If a counter of a guest (accesses by pair of nodes, latency) changed by CHANGE since the last look, it
   looks.
3. If a look led to nothing, the time until the next one doubles, up to SLOWEST wakes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.simulate.source_views import CLOCK_SCALE

WAKE_NS = 100e6 / CLOCK_SCALE
CHANGE = 0.02
SLOWEST = 16

Reading = Sequence[tuple[Matrix, float]]


@dataclass
class AgentClock:
    """The agent's sense of time."""

    next_wake_ns: float = WAKE_NS
    interval: int = 1
    waited: int = 0
    known: Reading | None = None

    def wake(self, now_ns: float, reading: Reading) -> bool:
        """Return whether to look now; ``reading`` has each guest's accesses by pair of nodes and latency."""
        self.next_wake_ns = now_ns + WAKE_NS
        self.waited += 1
        if self._changed(reading):
            self.interval = 1
        elif self.waited < self.interval:
            return False
        self.known, self.waited = reading, 0
        return True

    def looked(self, changed: bool) -> None:
        """Note whether the look led to anything."""
        self.interval = 1 if changed else min(2 * self.interval, SLOWEST)

    def _changed(self, reading: Reading) -> bool:
        if self.known is None or len(reading) != len(self.known):
            return True
        return any(
            np.abs(now - then).sum() > CHANGE * then.sum() or abs(l_now - l_then) > CHANGE * l_then
            for (now, l_now), (then, l_then) in zip(reading, self.known, strict=True)
        )
