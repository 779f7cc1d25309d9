"""Memory that one node uses and another one visits goes to the one that uses it.  Truth: the meter."""

import contextlib
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from lab import scenario_stage
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import Scenario, read_scenario
from lab.scenario_agents import VmplaceAgent
from lab.scenario_judge import is_intact
from lab.scenario_meter import read_window
from lab.scenario_prepare import prepare_stage
from tests.lab.test_agent import until

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]

EARLY = read_scenario("visited-halves")
ONCE = replace(EARLY, agent_config=EARLY.agent_config.replace("first_ms = 16", "first_ms = 0"))
WINDOW_S = 2.0
ROUNDS, TRIES = 4, 6
"""After so many windows of the agent one looks where memory is, and so often."""


def lar(host: LabHost) -> float:
    share = read_window(host, host.topology, WINDOW_S, len(EARLY.guests)).lar(1) or 0.0
    print(f"local access ratio {share:.2f}")
    return share


@contextlib.contextmanager
def placed_by_agent(scenario: Scenario) -> Iterator[tuple[LabHost, VmplaceAgent]]:
    """Have the agent at work; in the end, the guest's memory is as it should be."""
    stage = prepare_stage(scenario, Progress())
    with boot_host(stage.topology, meter=True, snapshot=stage.snapshot, files=stage.files) as host:
        assert 0.4 < lar(host) < 0.65
        agent = VmplaceAgent(host, scenario)
        agent.start()
        yield host, agent
        agent.stop()
        (answer,) = scenario_stage.ask_payloads(host, scenario.guests, "verify", 120).values()
        assert is_intact(answer)


def let_look(agent: VmplaceAgent, rounds: int) -> None:
    """Wait until the agent has looked so often since its start."""
    until(lambda: (agent.rounds() or 0) >= rounds, f"{rounds} windows")


def test_bits_that_are_read_early_bring_memory_to_the_node_that_uses_it_most() -> None:
    """The control: the same agent, which reads bits once a window, leaves them interleaved."""
    with placed_by_agent(EARLY) as (host, agent):
        rounds, share = 0, 0.0
        while share <= 0.85 and rounds < TRIES * ROUNDS:
            rounds += ROUNDS
            let_look(agent, rounds)
            share = lar(host)
        assert share > 0.85
    with placed_by_agent(ONCE) as (host, agent):
        let_look(agent, rounds)
        assert lar(host) < 0.75
