"""The agent with samples of IBS alone: a guest's memory comes home.

It opens no placement fd; VMPLACE_KERNEL=stock runs the same on a kernel that has none.  Truth: the meter.
"""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from lab import scenario_stage
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import read_scenario
from lab.scenario_agents import VmplaceAgent
from lab.scenario_judge import is_intact
from lab.scenario_meter import read_window
from lab.scenario_prepare import prepare_stage
from tests.lab.test_agent import status, until

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]

AGENT = 'source = "ibs"\nwindow_ms = 500\nlongest_rest_ms = 500\n'
SCENARIO = replace(read_scenario("one-guest"), agent_config=AGENT)
WINDOW_S = 2.0


@pytest.fixture
def host() -> Iterator[LabHost]:
    stage = prepare_stage(SCENARIO, Progress())
    with boot_host(stage.topology, meter=True, snapshot=stage.snapshot, files=stage.files) as booted:
        booted.run("sysctl -q kernel.numa_balancing=0")
        yield booted


def lar(host: LabHost) -> float:
    return read_window(host, host.topology, WINDOW_S, len(SCENARIO.guests)).lar(1) or 0.0


def test_a_guest_comes_home_by_samples_alone(host: LabHost) -> None:
    assert lar(host) < 0.1
    agent = VmplaceAgent(host, SCENARIO)
    agent.start()
    assert status(host)["source"] == "ibs"
    until(lambda: lar(host) > 0.9, "the guest's memory is at home")
    agent.stop()
    (answer,) = scenario_stage.ask_payloads(host, SCENARIO.guests, "verify", 120).values()
    assert is_intact(answer)
