"""Touches estimated by when accessed bits were first seen, against touches at declared rates."""

import numpy as np
import numpy.typing as npt
import pytest

from vmplace.model.touch_rates import expected_touches, reading_times

NPAGES, LOOKS = 4096, 60
TIMES = reading_times(0.0625, 4.0)
OWN, NEIGHBOUR = 20.0, 1.0
Floats = npt.NDArray[np.float64]


def first_readings(touches: Floats, times: Floats, chance: np.random.Generator) -> npt.NDArray[np.intp]:
    """Return which reading shows each bit first: each page's first touch comes at a random time."""
    with np.errstate(divide="ignore"):
        due = chance.exponential(1.0, touches.shape) / touches * times[-1]
    first: npt.NDArray[np.intp] = np.searchsorted(times, due)
    return first


def heat_of(touches: Floats, times: Floats = TIMES, looks: int = LOOKS) -> Floats:
    """Return the mean of what ``looks`` tell of pages that are touched so often between two looks."""
    chance, total = np.random.default_rng(3), np.zeros_like(touches)
    for look in range(looks):
        before = total / max(look, 1)
        total += expected_touches(first_readings(touches, times, chance), times, before)
    return total / looks


def shared_unevenly() -> Floats:
    """Return touches of pages that one node uses, and every other one of which a neighbour uses a little."""
    touches = np.tile([OWN, NEIGHBOUR], (NPAGES, 1))
    touches[::2, 1] = 0.0
    return touches


def test_bits_are_read_whenever_four_times_as_long_has_passed() -> None:
    assert reading_times(0.125, 2.0).tolist() == [0.125, 0.5, 2.0]
    assert reading_times(0.125, 3.0).tolist() == [0.125, 0.5, 2.0, 3.0]
    assert reading_times(0.125, 0.1).tolist() == [0.1]


def test_pages_without_a_touch_have_none() -> None:
    assert not heat_of(shared_unevenly())[::2, 1].any()


def test_a_neighbour_is_distinguished_from_the_node_that_uses_a_page_all_the_time() -> None:
    heat = heat_of(shared_unevenly())[1::2].mean(axis=0)
    assert heat[0] / heat[1] == pytest.approx(OWN / NEIGHBOUR, rel=0.2)


def test_one_reading_cannot_tell_them_apart() -> None:
    """The control: what bits say that are read only when they are cleared."""
    heat = heat_of(shared_unevenly(), TIMES[-1:])[1::2].mean(axis=0)
    assert heat[0] / heat[1] < 2.0


def test_the_total_is_right_whatever_the_rates() -> None:
    touches = np.random.default_rng(4).gamma(0.5, 8.0, (NPAGES, 2))
    assert heat_of(touches, looks=20).sum() == pytest.approx(touches.sum(), rel=0.1)


def test_what_was_seen_before_makes_rates_more_certain() -> None:
    touches = np.random.default_rng(4).gamma(0.5, 8.0, (NPAGES, 2))

    def error(looks: int) -> float:
        heat = heat_of(touches, looks=looks)
        return float(np.abs(heat / heat.sum() - touches / touches.sum()).sum() / 2)

    assert error(60) < error(10) < error(1) / 1.5


def test_the_unit_of_what_was_known_does_not_matter() -> None:
    chance = np.random.default_rng(5)
    first = first_readings(shared_unevenly(), TIMES, chance)
    before = chance.gamma(0.5, 8.0, first.shape)
    usual, small = (expected_touches(first, TIMES, unit * before) for unit in (1.0, 2.0**-30))
    assert small == pytest.approx(usual)
