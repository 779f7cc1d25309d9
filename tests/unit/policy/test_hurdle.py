"""The hurdle of changes whose cost and gain are known beforehand."""

import pytest

from vmplace.policy.hurdle import MOST_CAUTION, PRIOR_NS, RANGE, Record

US, MINUTE = 1e3, 1.2e9
"""A minute of a guest's time is a fiftieth of that in the planner's."""


def after_trials(count: int, cost_ns: float, gain_ns: float, record: Record | None = None) -> Record:
    record = record or Record()
    for _ in range(count):
        record = record.with_trial(cost_ns, gain_ns)
    return record


def test_it_begins_at_the_root_of_what_trials_are_taken_to_have_cost_and_earned():
    assert Record().hurdle == pytest.approx((PRIOR_NS[0] / PRIOR_NS[1]) ** 0.5)


def test_many_small_losses_raise_it_as_few_large_ones_do():
    """Both guests spent 2 ms on copies and got half of it back: neither is to go on like that."""
    small, large = after_trials(20, 100 * US, 50 * US), after_trials(2, 1000 * US, 500 * US)
    assert small.hurdle > 2 * Record().hurdle
    assert large.hurdle > 1.2 * Record().hurdle
    assert after_trials(20, 100 * US, 100 * US).hurdle < Record().hurdle


def test_gains_make_up_for_losses():
    lost = after_trials(20, 100 * US, 50 * US)
    assert (
        after_trials(20, 100 * US, 400 * US, lost).hurdle < 1.2 * after_trials(20, 100 * US, 400 * US).hurdle
    )
    assert after_trials(1, 4000 * US, 16000 * US).hurdle < 1


def test_a_phase_that_lost_is_forgotten_within_some_minutes():
    lost = after_trials(20, 100 * US, 0.0)
    assert lost.hurdle > 1.9 * lost.after(10 * MINUTE).hurdle
    twice = lost.after(MINUTE).after(MINUTE)
    assert twice.hurdle == pytest.approx(lost.after(2 * MINUTE).hurdle)


@pytest.mark.parametrize("gain_ns", [-1e9, 0.0, 1e-9, 1e12])
@pytest.mark.parametrize("cost_ns", [0.0, 1e-9, 1e12])
def test_it_has_bounds_whatever_was_counted(cost_ns: float, gain_ns: float):
    record = after_trials(50, cost_ns, gain_ns)
    assert RANGE[0] <= record.hurdle <= RANGE[1] and 1 <= record.caution <= MOST_CAUTION
