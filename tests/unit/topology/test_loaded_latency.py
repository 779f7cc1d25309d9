"""How long accesses wait at a busy controller follows from latencies beside streams."""

import pytest

from vmplace.topology.loaded_latency import LoadedPoint, measured_queue

IDLE, SERVED = {0: 90.0, 1: 100.0}, {0: 64e9, 1: 32e9}


def waiting(nid: int, used: float, queue: float) -> LoadedPoint:
    """Return what a host with this queue shows."""
    lines_per_ns = SERVED[nid] / 64e9
    return LoadedPoint(nid, used * SERVED[nid], IDLE[nid] + queue / lines_per_ns * used / (1 - used))


@pytest.mark.parametrize("queue", [0.5, 1.2, 5.2])
def test_the_queue_of_a_host_is_found(queue: float):
    points = [waiting(nid, used, queue) for nid in (0, 1) for used in (0.3, 0.5, 0.8)]
    assert measured_queue(points, IDLE, SERVED) == pytest.approx(queue)


def test_light_and_full_loads_say_nothing():
    light, full = waiting(0, 0.1, 40.0), waiting(0, 0.98, 0.3)
    assert measured_queue([light, full, light, full], IDLE, SERVED) is None
    assert measured_queue([light, full, *[waiting(0, 0.5, 2.0)] * 2], IDLE, SERVED) == pytest.approx(2.0)


def test_one_measurement_is_too_few():
    assert measured_queue([waiting(0, 0.5, 2.0)], IDLE, SERVED) is None


def test_latencies_that_fall_under_load_measured_something_else():
    assert measured_queue([LoadedPoint(0, 32e9, 80.0)] * 3, IDLE, SERVED) is None


def test_a_node_of_which_nothing_else_is_known_says_nothing():
    assert measured_queue([LoadedPoint(7, 32e9, 200.0)] * 3, IDLE, SERVED) is None
