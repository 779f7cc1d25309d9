"""Pressure is bytes asked over bytes measured, by node; what is unknown is no zero."""

import numpy as np
import pytest

from vmplace.model.metrics import TrafficMatrix
from vmplace.model.pressure import accesses_by_node, memory_pressure, node_pressure
from vmplace.topology.host import HostTopology, Node

GIB = 1 << 30
NODES = (Node(0, (0,), GIB, GIB), Node(2, (), GIB, GIB))
HOST = HostTopology(NODES, {}, bandwidths={(0, 0): 6_400_000_000, (0, 2): 1_600_000_000})


def test_a_hundred_lines_a_microsecond_are_all_of_6400_mb_per_s() -> None:
    traffic = TrafficMatrix((0, 2), np.array([[1.0, 0.0], [0.0, 0.0]]))
    found = memory_pressure(HOST, traffic, 100.0)
    assert found is not None
    assert (found[0], found[2]) == pytest.approx((1.0, 0.0))


def test_accesses_are_distributed_as_the_traffic_is() -> None:
    # A node without CPUs (CXL) is limited by the path from the CPUs that reach it best.
    traffic = TrafficMatrix((0, 2), np.array([[30.0, 10.0], [0.0, 0.0]]))
    found = memory_pressure(HOST, traffic, 10.0)
    assert found is not None
    assert (found[0], found[2]) == pytest.approx((0.075, 0.1))


def test_a_node_serves_its_share_of_the_accesses_whatever_its_bandwidth() -> None:
    traffic = TrafficMatrix((0, 2), np.array([[30.0, 10.0], [0.0, 0.0]]))
    assert accesses_by_node(traffic, 10.0) == {0: 7.5e6, 2: 2.5e6}
    assert accesses_by_node(TrafficMatrix((0, 2), np.zeros((2, 2))), 0.0) == {0: 0.0, 2: 0.0}


def test_what_is_unknown_is_no_zero() -> None:
    traffic = TrafficMatrix((0, 2), np.eye(2))
    assert accesses_by_node(traffic, None) is None and accesses_by_node(None, 1.0) is None
    assert accesses_by_node(TrafficMatrix((0, 2), np.zeros((2, 2))), 1.0) is None
    assert memory_pressure(HOST, traffic, None) is None
    assert memory_pressure(HOST, None, 1.0) is None
    assert memory_pressure(HostTopology(NODES, {}), traffic, 1.0) is None
    assert memory_pressure(HOST, TrafficMatrix((0, 2), np.zeros((2, 2))), 1.0) is None


def test_guests_add_up() -> None:
    assert node_pressure([{0: 0.5, 2: 0.1}, None, {0: 0.25}]) == {0: 0.75, 2: 0.1}
