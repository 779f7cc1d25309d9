"""What changes the host goes together: memory follows vCPUs, and does not go where they could not."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.actuation.child_guest import child_guest, plan_of
from vmplace.agent.actuator import HostActuator
from vmplace.agent.config import Config
from vmplace.policy.plan import VcpuMove


@pytest.mark.parametrize(("cpus", "moved_for"), [((0,), {"db1"}), ((1000,), set())], ids=["can", "cannot"])
def test_memory_stays_where_vcpus_could_not_be_pinned(
    tmp_path: Path, cpus: tuple[int, ...], moved_for: set[str]
):
    with child_guest(8) as child:
        name = child.guest.name
        move = VcpuMove(name, {0: cpus}, (0,), 0, "test")
        plan = replace(plan_of(child.hva, 8, 0), vcpu_moves=(move,))
        actuator = HostActuator(Config(state_dir=str(tmp_path), numa_balancing="leave"))
        try:
            result = actuator.apply(plan, {name: child.guest}, lambda: False)
        finally:
            actuator.close()
    assert {outcome.guest for outcome in result.outcomes} == moved_for
    assert bool(result.failures) == (not moved_for)
    assert result.pinned_vcpus == len(moved_for)
