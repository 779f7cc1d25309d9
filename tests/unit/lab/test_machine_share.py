"""Does the demo wait until others leave enough of the machine, and for how long?"""

import pytest

from lab.errors import TooSlowError
from lab.machine_share import AWAIT_S, LOOK_S, MachineTimes, await_free_machine
from lab.progress import Progress


def waited_s(*others: float) -> float:
    """Return for how long it waits where others use these shares of two CPUs, the last one for ever."""
    now, used = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, used
        share = others[min(int(now / LOOK_S), len(others) - 1)]
        now, used = now + seconds, used + 2 * seconds * share

    await_free_machine(Progress(), lambda: MachineTimes(2 * now, used, 0.0), sleep)
    return now


def test_a_free_machine_costs_one_look():
    assert waited_s(0.0) == LOOK_S
    assert waited_s(0.25) == LOOK_S


def test_what_ends_soon_is_waited_for():
    assert waited_s(1.0, 0.9, 0.8, 0.1) == 4 * LOOK_S


def test_what_does_not_end_is_too_slow_and_says_how_much_others_use():
    with pytest.raises(TooSlowError, match="others use 50% of it, and a verdict needs 70%"):
        waited_s(0.5)
    assert AWAIT_S <= 60
