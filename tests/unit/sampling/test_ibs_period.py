"""How often does IBS sample?"""

import pytest

from vmplace.sampling.ibs_period import LONGEST_PERIOD, SAMPLE_NS, SampleCost, next_period

SECOND_NS = 10**9


def cost(samples: int, *, period: int = 262_144, cpus: int = 8) -> SampleCost:
    return SampleCost(samples=samples, window_ns=SECOND_NS, period=period, cpus=cpus)


@pytest.mark.parametrize(("acted", "period"), [(False, 262_144), (True, 65_536)])
def test_the_rate_is_high_after_actions_only(acted: bool, period: int) -> None:
    assert next_period(cost(100), acted=acted) == period


def test_samples_cost_no_more_than_a_hundredth_of_a_cpu() -> None:
    busy = cost(40_000)
    period = next_period(busy, acted=True)
    samples_then = busy.samples * busy.period / period
    assert samples_then * SAMPLE_NS == pytest.approx(0.01 * SECOND_NS, rel=0.001)


def test_a_large_host_may_spend_a_hundredth_for_each_64_cpus() -> None:
    small, large = (next_period(cost(80_000, cpus=cpus), acted=True) for cpus in (64, 256))
    assert small == pytest.approx(4 * large, rel=0.001)


def test_the_period_fits_the_register() -> None:
    assert next_period(cost(10**9), acted=True) == LONGEST_PERIOD
    assert LONGEST_PERIOD < 1 << 27
    assert LONGEST_PERIOD % 16 == 0
