"""How long windows are, by what looks cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmplace.agent.look_interval import SHARE, LookInterval

COSTS = st.lists(st.floats(0, 10), max_size=6)


@given(COSTS, st.integers(20, 1000))
def test_a_window_is_within_its_limits_whatever_looks_cost(costs: list[float], shortest_ms: int) -> None:
    interval = LookInterval(shortest_ms, 1000)
    for cost_s in costs:
        interval = interval.after(cost_s)
        assert shortest_ms <= interval.window_ms <= 1000


@given(st.floats(0, SHARE * 0.999))
def test_looks_take_their_share_of_a_cpu_at_most(cost_s: float) -> None:
    """Where they do not take more at the longest windows already."""
    interval = LookInterval(20, 1000).after(cost_s).after(cost_s)
    assert cost_s <= SHARE * (interval.window_ms + 1) / 1000


def test_a_window_is_as_long_as_it_may_be_until_a_look_has_shown_its_cost() -> None:
    assert LookInterval(250, 1000).window_ms == 1000


@pytest.mark.parametrize("shortest_ms", [1000, 500])
def test_one_dear_look_is_forgotten_after_two_cheap_ones(shortest_ms: int) -> None:
    interval = LookInterval(shortest_ms, 1000).after(5.0)
    assert interval.window_ms == 1000
    assert interval.after(0.001).after(0.001).window_ms == shortest_ms
