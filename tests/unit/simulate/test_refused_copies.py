"""A KVM that refuses copies of some pages: the plan counts what the others gain, as the run itself shows."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.simulate.small_trace import shared_pages
from tests.unit.simulate.test_agent_run import KVM, LONG, simulation_of, spec_of
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.simulate import agent_run
from vmplace.simulate.agent_host import SimulatedMachine
from vmplace.simulate.agent_run import AgentHost, AgentSetup, quiet

NOT_ANONYMOUS = 3


def gained_and_taken_ns(
    refused_of_10: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, float]:
    """Return what the plan says was gained, and how long the guest ran; of ten pages so many are refused."""
    made, policies = SimulatedMachine._copy, list[AutoPolicy]()

    def copy(machine: SimulatedMachine, guest: Any, slots: Any) -> tuple[int, int]:
        may = slots[slots * 7 % 10 >= refused_of_10]
        have, why = made(machine, guest, may)
        return have, why if len(may) == len(slots) else NOT_ANONYMOUS

    def begun(*words: Any) -> AutoPolicy:
        policies.append(AutoPolicy(words[1]))
        return policies[-1]

    simulation = simulation_of(spec_of(shared_pages(heat=LONG)))
    with monkeypatch.context() as patch, quiet():
        patch.setattr(SimulatedMachine, "_copy", copy)
        patch.setattr(agent_run, "begun", begun)
        host = AgentHost(simulation, AgentSetup("auto", KVM), folder)
        with closing(host.actuator()) as actuator:
            host.agent(actuator).run()
    (policy,) = policies
    return policy.state.memories["g"].gained_ns, simulation.now


@pytest.mark.slow
@pytest.mark.parametrize("refused_of_10", [5, 9])
def test_a_plan_counts_what_copies_gain_that_are_there(
    refused_of_10: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gained_ns, run_ns = np.array(gained_and_taken_ns(refused_of_10, tmp_path / "some", monkeypatch))
    moved_ns, longest_ns = np.array(gained_and_taken_ns(10, tmp_path / "none", monkeypatch))
    assert longest_ns - run_ns > 0.02 * longest_ns
    assert gained_ns - moved_ns == pytest.approx(longest_ns - run_ns, rel=0.25)
