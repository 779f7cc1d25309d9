"""The last samples of what an instruction took a guest, and when each ended."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.policy.plan import CostSample
from vmplace.policy.trial import AFTER, ROUNDING
from vmplace.sampling.guest_cost import MemoryRate

KEPT = 2 * AFTER
NOTHING = np.zeros(5)


@dataclass
class CostSamples:
    """Windows make up samples of ``sample_s`` at least; a window that nobody measured ends none."""

    kept: deque[CostSample] = field(default_factory=lambda: deque(maxlen=KEPT))
    total: Matrix = field(default_factory=NOTHING.copy)
    """Cost, accesses per instruction, 1, waits for a CPU, and 1 where these are known, each times seconds."""

    def add(
        self, cost: float | None, rate: MemoryRate | None, window_s: float, sample_s: float, now_s: float
    ) -> None:
        """Take in a window of ``window_s`` that ends now; ``cost``: cycles per instruction, if known."""
        if cost is None:
            self.total = NOTHING.copy()
            return
        waits = None if rate is None else rate.waits
        known = (0.0, 0.0) if waits is None else (waits, 1.0)
        self.total += np.array([cost, _accesses(cost, rate), 1.0, *known]) * window_s
        costs, accesses, seconds, waited, waited_s = self.total.tolist()
        if seconds >= sample_s * (1 - ROUNDING):
            waits = waited / waited_s if waited_s else None
            self.kept.append(CostSample(now_s, costs / seconds, accesses / seconds, waits))
            self.total = NOTHING.copy()


def _accesses(cost: float, rate: MemoryRate | None) -> float:
    """Return accesses to DRAM per instruction, in any unit, 0 where nothing counts them."""
    if rate is None or not rate.dram_per_us or not rate.cpus:
        return 0.0
    return rate.dram_per_us / rate.cpus * cost
