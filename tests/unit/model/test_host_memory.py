"""The memory system of a host follows from what firmware or a calibration reported of it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.views import host
from vmplace.model.host_memory import host_memory
from vmplace.topology.host import NodeLink

GB = 10**9


def test_controllers_serve_what_was_measured_in_lines_of_64_bytes():
    system = host_memory(host(nids=(0, 8), bandwidths={(0, 0): 64 * GB, (8, 8): 32 * GB}))
    assert system is not None and system.nids == (0, 8)
    assert system.controller.tolist() == pytest.approx([1.0, 0.5])


def test_unknown_paths_are_scaled_by_distance():
    system = host_memory(host(nids=(0, 1), bandwidths={(0, 0): 64 * GB, (1, 1): 64 * GB}))
    assert system is not None
    assert [link.capacity for link in system.links] == pytest.approx([0.5, 0.5])
    assert system.latency[0, 1] == 2 * system.latency[0, 0]


def test_measured_paths_are_taken_as_they_are():
    known = {(0, 0): 64 * GB, (1, 1): 64 * GB, (0, 1): 16 * GB, (1, 0): 8 * GB}
    system = host_memory(host(nids=(0, 1), bandwidths=known))
    assert system is not None
    capacity = {link.ends: link.capacity for link in system.links}
    assert capacity == pytest.approx({(0, 1): 0.25, (1, 0): 0.125})


def test_a_host_of_which_no_bandwidth_is_known_has_no_answer():
    assert host_memory(host()) is None
    assert host_memory(host(bandwidths={(0, 0): GB})) is None


def test_a_node_of_memory_alone_has_a_controller():
    known = {(0, 0): 64 * GB, (0, 1): 16 * GB}
    system = host_memory(host(nids=(0, 1), cpuless=(1,), bandwidths=known))
    assert system is not None and np.all(system.controller > 0)


BOTH = {(0, 0): 64 * GB, (1, 1): 64 * GB, (0, 1): 16 * GB, (1, 0): 16 * GB}
LATENCIES = {(0, 0): 90, (1, 1): 95, (0, 1): 140, (1, 0): 145}


def test_measured_latencies_are_taken_as_they_are():
    system = host_memory(replace(host(nids=(0, 1), bandwidths=BOTH), idle_latencies=LATENCIES))
    assert system is not None
    # The native core reads doubles.
    assert system.latency.dtype == np.float64
    assert system.latency.tolist() == [[90, 140], [145, 95]]


def test_latencies_of_some_pairs_alone_say_nothing():
    some = {pair: ns for pair, ns in LATENCIES.items() if pair != (1, 0)}
    bare = host_memory(host(nids=(0, 1), bandwidths=BOTH))
    system = host_memory(replace(host(nids=(0, 1), bandwidths=BOTH), idle_latencies=some))
    assert system is not None and bare is not None
    assert system.latency.tolist() == bare.latency.tolist()


def test_links_that_paths_share_take_the_place_of_paths():
    shared = (NodeLink((0, 1), 16 * GB),)
    system = host_memory(replace(host(nids=(0, 1), bandwidths=BOTH), links=shared, queue=5.0))
    assert system is not None and system.queue == 5.0
    assert [(link.ends, link.capacity, link.directed) for link in system.links] == [((0, 1), 0.25, False)]


def test_links_of_a_node_that_is_gone_are_forgotten():
    gone = (NodeLink((0, 7), 16 * GB),)
    system = host_memory(replace(host(nids=(0, 1), bandwidths=BOTH), links=gone))
    assert system is not None and len(system.links) == 2
