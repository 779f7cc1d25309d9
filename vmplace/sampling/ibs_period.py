"""How often should IBS sample?  Rarely while nothing happens, often while pages are being moved.

1. A window in which the agent acted is followed by the high rate, any other by the low one.
2. If the samples of a window cost more CPU than the budget allows, the period grows until they do not.

Source: Dashti et al., "Traffic Management" (ASPLOS'13), section 3.3.1: a period of 65,536 or 262,144 ops.
"""

from dataclasses import dataclass

HIGH_RATE_PERIOD = 65_536
LOW_RATE_PERIOD = 262_144
# OPCNTEXT has 27 bits, in steps of 16.
LONGEST_PERIOD = (1 << 27) - 16
BUDGET_CPUS = 64
"""One hundredth of a CPU's time for so many CPUs."""
BUDGET_SHARE = 0.01
SAMPLE_NS = 2_000
"""Interrupt, record, its reading: 4,000 instructions (docs/design/ibs-samples.md), at 2 a nanosecond."""


@dataclass(frozen=True)
class SampleCost:
    """What sampling took in one window: ``samples`` over ``window_ns`` at ``period``, on ``cpus`` CPUs."""

    samples: int
    window_ns: int
    period: int
    cpus: int


def next_period(cost: SampleCost, *, acted: bool) -> int:
    """Return the period for the next window."""
    wanted = HIGH_RATE_PERIOD if acted else LOW_RATE_PERIOD
    return min(max(wanted, cheapest_period(cost)), LONGEST_PERIOD) & ~15


def cheapest_period(cost: SampleCost) -> int:
    """Return the shortest period at which so busy CPUs stay within the budget."""
    budget_ns = cost.window_ns * BUDGET_SHARE * max(cost.cpus / BUDGET_CPUS, 1)
    return int(cost.period * cost.samples * SAMPLE_NS / budget_ns) if budget_ns else 0
