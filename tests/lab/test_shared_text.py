"""Code that four nodes execute is copied to each of them, and stays there.  Truth: the meter's fetches."""

import time
from collections.abc import Iterator

import pytest

from lab import scenario_stage
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_agents import VmplaceAgent
from lab.scenario_judge import is_intact
from lab.scenario_meter import read_window
from lab.scenario_prepare import prepare_stage

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]

SCENARIO = read_scenario("shared-text")
WINDOW_S, PAUSE_S, STAYS_S = 2.0, 3.0, 40.0
LONGEST_S = 300.0


@pytest.fixture
def host() -> Iterator[LabHost]:
    stage = prepare_stage(SCENARIO, Progress())
    with boot_host(stage.topology, meter=True, snapshot=stage.snapshot, files=stage.files) as booted:
        yield booted


def fetch_lar(host: LabHost) -> float:
    """Return which share of the guest's instructions lies on the node that executes them."""
    return read_window(host, host.topology, WINDOW_S, len(SCENARIO.guests)).fetch_lar(1) or 0.0


def becomes_local(host: LabHost) -> bool:
    """Tell whether the share gets above 0.9, and stays there, before LONGEST_S are over.

    KVM takes a few writes beside the code for the begin of many, once.
    """
    since = begin = time.monotonic()
    while time.monotonic() < min(since + STAYS_S, begin + LONGEST_S):
        if fetch_lar(host) <= 0.9:
            since = time.monotonic()
        # A metered guest is slow, and so is the agent beside it.
        time.sleep(PAUSE_S)
    return since + STAYS_S <= begin + LONGEST_S


def test_each_node_executes_its_own_copy_of_code_as_long_as_the_agent_runs(host: LabHost) -> None:
    assert 0.2 < fetch_lar(host) < 0.3
    agent = VmplaceAgent(host, SCENARIO)
    agent.start()
    assert becomes_local(host)
    agent.stop()
    assert fetch_lar(host) < 0.4
    (answer,) = scenario_stage.ask_payloads(host, SCENARIO.guests, "verify", 120).values()
    assert is_intact(answer)
