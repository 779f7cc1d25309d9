"""The best mixture of placements, against a grid of all mixtures."""

import itertools

import numpy as np
import pytest

from tests.unit.policy.test_host_plan import two_nodes
from vmplace.policy.corner_mix import CornerMix

SCALE, IMPORTANCES = np.array([1.0, 1.0]), np.array([1.0, 3.0])


def corner(first: list[float], second: list[float]) -> np.ndarray:
    """Return the traffic of two guests, on node 0 and on node 1, by the node of their memory."""
    traffic = np.zeros((2, 2, 2))
    traffic[0, 0], traffic[1, 1] = first, second
    return traffic


CORNERS = [
    corner([0.02, 0.0], [0.02, 0.0]),
    corner([0.02, 0.0], [0.0, 0.02]),
    corner([0.0, 0.02], [0.0, 0.02]),
]
PAID = [np.zeros(2), np.array([0.0, 0.1]), np.array([0.2, 0.1])]


def cost(mix: CornerMix, weights: np.ndarray) -> float:
    waits = mix.system.waits(weights @ mix.asked)
    return float(weights @ mix.plain + (weights @ mix.weighted) @ waits)


@pytest.mark.parametrize("controllers", [(0.03, 0.03), (0.03, 0.01), (1.0, 1.0)])
def test_no_mixture_on_a_grid_is_better(controllers: tuple[float, float]):
    mix = CornerMix.of(two_nodes(controllers, 0.02), CORNERS, PAID, SCALE, IMPORTANCES)
    best = mix.best(np.array([1.0, 0.0, 0.0]))
    assert best.sum() == pytest.approx(1.0)
    grid = [
        np.array([a, b, 50 - a - b]) / 50 for a, b in itertools.product(range(51), repeat=2) if a + b <= 50
    ]
    assert cost(mix, best) <= min(cost(mix, one) for one in grid) * (1 + 1e-3)


def test_margins_are_the_slope_of_the_cost():
    mix = CornerMix.of(two_nodes((0.03, 0.02), 0.02), CORNERS, PAID, SCALE, IMPORTANCES)
    at, step = np.array([0.5, 0.3, 0.2]), 1e-6
    for index, margin in enumerate(mix.margins(at)):
        nudge = step * np.eye(3)[index]
        assert (cost(mix, at + nudge) - cost(mix, at - nudge)) / (2 * step) == pytest.approx(margin, rel=1e-4)


def test_a_corner_that_is_worse_in_every_way_gets_no_weight():
    mix = CornerMix.of(two_nodes((1.0, 1.0), 1.0), CORNERS, PAID, SCALE, IMPORTANCES)
    assert mix.best(np.array([1.0, 0.0, 0.0])).tolist() == pytest.approx([0.0, 1.0, 0.0])
