"""An idle host is looked at less and less often, but never never."""

from vmplace.agent.idle_backoff import IdleBackoff


def rests(moved: list[bool]) -> list[int]:
    backoff = IdleBackoff(window_ms=1000, longest_rest_ms=5000)
    found = []
    for was_moved in moved:
        backoff = backoff.after(moved=was_moved)
        found.append(backoff.rest_ms)
    return found


def test_rest_doubles_up_to_its_bound_while_nothing_moves():
    assert rests([False] * 6) == [0, 1000, 2000, 4000, 5000, 5000]


def test_a_move_ends_all_rest():
    assert rests([False, False, False, True, False]) == [0, 1000, 2000, 0, 0]


def test_years_of_quiet_overflow_nothing():
    assert IdleBackoff(1000, 5000, quiet=10**9).rest_ms == 5000
