"""What a controller serves, and how long accesses wait for it, follow from latencies beside streams."""

import numpy as np
import pytest

from vmplace.topology.loaded_latency import Controller, LoadedPoint, fitted, host_queue

SERVES = 6.4e9
IDLE_NS = 90.0


def points(queue: float, *used: float, noise: float = 0.0, seed: int = 0) -> list[LoadedPoint]:
    """Return what is measured of a controller at these shares of what it serves."""
    chance = np.random.default_rng(seed)
    lines = SERVES / 64e9
    waits = [queue / lines * rho / (1 - rho) for rho in used]
    return [
        LoadedPoint(rho * SERVES * (1 + noise * chance.normal()), wait * (1 + noise * chance.normal()))
        for rho, wait in zip(used, waits, strict=True)
    ]


@pytest.mark.parametrize("queue", [1.2, 5.2, 40.0])
@pytest.mark.parametrize("used", [(0.4, 0.6, 0.8), (0.7, 0.85, 0.95), (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)])
def test_a_controller_is_found_by_the_waits_at_it(queue: float, used: tuple[float, ...]):
    found = fitted(points(queue, *used), IDLE_NS)
    assert found is not None
    assert found.bytes_per_s == pytest.approx(SERVES, rel=1e-3)
    assert found.queue == pytest.approx(queue, rel=1e-3)


def test_measurements_that_are_three_percent_off_find_about_the_same():
    found = [
        fitted(points(3.0, 0.3, 0.45, 0.6, 0.75, 0.85, 0.92, noise=0.03, seed=seed), IDLE_NS)
        for seed in range(100)
    ]
    queues = [one.queue for one in found if one is not None]
    assert len(queues) > 90
    assert np.quantile(queues, [0.05, 0.95]).tolist() == pytest.approx([3.0, 3.0], rel=0.35)


def test_cpus_that_cannot_fill_a_controller_find_none():
    """At half of what it serves at most, the line would have to be drawn too far."""
    assert fitted(points(2.0, 0.2, 0.35, 0.5), IDLE_NS) is None


def test_waits_that_do_not_rise_measured_something_else():
    assert fitted([LoadedPoint(x * 1e9, 20.0) for x in (2, 4, 6)], IDLE_NS) is None
    assert fitted([LoadedPoint(x * 1e9, 60.0 / x) for x in (5, 10, 15)], IDLE_NS) is None
    assert fitted([LoadedPoint(x * 1e9, -3.0) for x in (5, 10, 15)], IDLE_NS) is None


def test_figures_that_hardly_differ_say_nothing():
    assert fitted(points(2.0, 0.90, 0.91, 0.92), IDLE_NS) is None
    assert fitted(points(2.0, 0.9, 0.9, 0.9), IDLE_NS) is None


def test_two_waits_or_none_say_nothing():
    assert fitted(points(2.0, 0.5, 0.8), IDLE_NS) is None
    assert fitted([], IDLE_NS) is None
    assert fitted(points(2.0, 0.01, 0.02, 0.5, 0.8), IDLE_NS) is None


def test_a_host_has_the_median_of_its_controllers():
    assert host_queue([], 0) is None
    known = [Controller(1e9, queue) for queue in (1.0, 9.0, 2.0)]
    assert host_queue(known, 3) == host_queue(known, 5) == 2.0
    # Of half of the nodes nothing is known.
    assert host_queue(known, 6) is None
