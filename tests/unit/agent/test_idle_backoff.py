"""An idle host is looked at less and less often, but never never."""

import pytest

from vmplace.agent.idle_backoff import IdleBackoff


def rests(
    moved: list[bool], look_s: float = 0.0, longest_rest_ms: int | None = 5000, *, left: bool = False
) -> list[int]:
    backoff = IdleBackoff(1000, longest_rest_ms)
    found = []
    for was_moved in moved:
        backoff = backoff.after(moved=was_moved, look_s=look_s, all_left=left)
        found.append(backoff.rest_ms)
    return found


def test_rest_doubles_up_to_its_bound_while_nothing_moves():
    assert rests([False] * 6) == [0, 1000, 2000, 4000, 5000, 5000]


def test_a_move_ends_all_rest():
    assert rests([False, False, False, True, False]) == [0, 1000, 2000, 0, 0]


def test_years_of_quiet_overflow_nothing():
    assert IdleBackoff(1000, 5000, quiet=10**9).rest_ms == 5000


@pytest.mark.parametrize("look_s", [0.01, 0.2, 0.3, 0.5, 0.9])
def test_on_a_quiet_host_looks_take_a_tenth_of_a_cpu_at_most(look_s: float):
    period_ms = 1000 + rests([False] * 20, look_s, None)[-1]
    assert 1000 * look_s / period_ms <= 0.1


def test_a_quiet_host_is_looked_at_each_ten_seconds_however_dear_that_is():
    assert rests([False] * 20, 60.0, None)[-1] == 10_000


def test_dear_looks_change_no_rest_before_it_has_grown_nor_one_that_a_move_ends():
    moved = [False, False, False, False, True, False]
    assert rests(moved, 2.0, None) == [0, 1000, 2000, 4000, 0, 0]


@pytest.mark.parametrize("longest_rest_ms", [0, 500, 1000, 1999, 2000, 5000, 60_000])
def test_a_longest_rest_that_is_set_holds_however_dear_looks_are(longest_rest_ms: int):
    assert rests([False] * 20, 2.0, longest_rest_ms)[-1] == longest_rest_ms


def test_while_all_guests_are_left_to_the_kernel_rests_are_long_at_once_unless_a_bound_is_set():
    moved = [False, False, False, True, False, False]
    assert rests(moved, 0.01, None, left=True) == [0, 10_000, 10_000, 0, 0, 10_000]
    assert rests(moved, 0.01, 3000, left=True) == [0, 3000, 3000, 0, 0, 3000]
