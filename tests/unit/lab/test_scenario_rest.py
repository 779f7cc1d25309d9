"""How long does a manager act?  Rules on made-up looks at it."""

import pytest

from lab.errors import TooSlowError
from lab.scenario import Timing
from lab.scenario_rest import Acting

FEW = 100
TIMING = Timing(least_s=10, quiet_s=5, most_s=30)


def acting(*, moves: int, share: float = 1.0) -> Acting:
    """Return a manager that moves pages at the first so many looks, one a second, and has its time."""
    seen = Acting(TIMING, (0, 0), FEW)
    for second in range(1, 1000):
        if seen.is_over:
            break
        seen.look(1.0, share, (1000 * min(second, moves) + second, 0))
    return seen


@pytest.mark.parametrize(("moves", "ends_s"), [(0, 10), (3, 10), (8, 13), (24, 29), (100, 30)])
def test_it_ends_at_rest_but_not_before_the_least_nor_after_the_most(moves: int, ends_s: int):
    assert acting(moves=moves).passed_s == ends_s


def test_a_machine_that_is_half_others_gives_it_twice_the_time():
    assert acting(moves=0, share=0.5).passed_s == 20
    assert acting(moves=100, share=0.5).passed_s == 60


def test_a_machine_that_is_all_others_does_not_keep_it_for_ever():
    assert acting(moves=100, share=0.01).passed_s == 120


def test_copies_count_as_moves():
    seen = Acting(TIMING, (7, 5000), FEW)
    seen.look(6.0, 1.0, (7, 4096))
    assert not seen.is_at_rest and seen.moved_until_s == 6.0


def test_a_few_pages_now_and_then_are_rest():
    seen = Acting(TIMING, (0, 0), FEW)
    for second in range(1, 11):
        seen.look(1.0, 1.0, (10 * second, 0))
    assert seen.is_at_rest


def test_one_that_never_rests_is_told_on_a_free_machine_and_not_judged_on_a_busy_one():
    assert acting(moves=3).note("vmplace") == ()
    assert "still moving" in acting(moves=100).note("vmplace")[0]
    with pytest.raises(TooSlowError, match="others used 80%"):
        acting(moves=100, share=0.2).note("vmplace")
