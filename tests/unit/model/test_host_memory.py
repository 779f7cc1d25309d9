"""The memory system of a host follows from what firmware or a calibration reported of it."""

import numpy as np
import pytest

from tests.unit.policy.views import host
from vmplace.model.host_memory import host_memory

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
