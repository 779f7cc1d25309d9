"""The last samples of what an instruction took a guest, and when each ended."""

from collections import deque
from dataclasses import dataclass, field

from vmplace.policy.plan import CostSample
from vmplace.policy.trial import AFTER, ROUNDING
from vmplace.sampling.guest_cost import MemoryRate

KEPT = 2 * AFTER
NOTHING = (0.0, 0.0, 0.0)


@dataclass
class CostSamples:
    """Windows make up samples of ``sample_s`` at least; a window that nobody measured ends none."""

    kept: deque[CostSample] = field(default_factory=lambda: deque(maxlen=KEPT))
    total: tuple[float, float, float] = NOTHING
    """Cost, accesses per instruction, and 1, each times seconds."""

    def add(
        self, cost: float | None, rate: MemoryRate | None, window_s: float, sample_s: float, now_s: float
    ) -> None:
        """Take in a window of ``window_s`` that ends now; ``cost``: cycles per instruction, if known."""
        if cost is None:
            self.total = NOTHING
            return
        costs, accesses, seconds = self.total
        costs, seconds = costs + cost * window_s, seconds + window_s
        self.total = costs, accesses + _accesses(cost, rate) * window_s, seconds
        if seconds >= sample_s * (1 - ROUNDING):
            self.kept.append(CostSample(now_s, costs / seconds, self.total[1] / seconds))
            self.total = NOTHING


def _accesses(cost: float, rate: MemoryRate | None) -> float:
    """Return accesses to DRAM per instruction, in any unit, 0 where nothing counts them."""
    if rate is None or not rate.dram_per_us or not rate.cpus:
        return 0.0
    return rate.dram_per_us / rate.cpus * cost
