"""Guests whose vCPUs float: the agent brings each one's together, and its memory with them."""

import pytest

from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_run import run_scenario

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(2400)]


def test_vcpus_that_float_are_gathered_and_their_memory_follows() -> None:
    """The control: whatever the scheduler and kernel balancing make of it, nobody but vmplace ties a vCPU."""
    result = run_scenario(read_scenario("floating"), ("none", "vmplace"), Progress())
    none, ours = result.managers["none"], result.managers["vmplace"]
    assert all(guest.intact for manager in (none, ours) for guest in manager.guests.values())
    nodes = [set(guest.vcpu_nids_after) for guest in ours.guests.values()]
    assert all(len(one) == 1 for one in nodes) and nodes[0] != nodes[1]
    assert all((guest.lar_after or 0) > 0.9 for guest in ours.guests.values())
    assert ours.emulated_run_time_s is not None and none.emulated_run_time_s is not None
    assert ours.emulated_run_time_s < none.emulated_run_time_s
