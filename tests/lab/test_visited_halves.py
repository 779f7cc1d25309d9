"""Memory that one node uses and another one visits goes to the one that uses it.  Truth: the meter."""

import msgspec
import pytest

from lab.progress import Progress
from lab.scenario import Scenario, read_scenario
from lab.scenario_result import GuestResult
from lab.scenario_run import run_scenario

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

EARLY = read_scenario("visited-halves")
ONCE = msgspec.structs.replace(
    EARLY, agent_config=EARLY.agent_config.replace("first_ms = 16", "first_ms = 0")
)


def placed(scenario: Scenario) -> GuestResult:
    """Return what became of the guest under the agent."""
    return run_scenario(scenario, ["vmplace"], Progress()).managers["vmplace"].guests["halves"]


@pytest.mark.xfail(
    reason="the joint plan was not run on these guests: docs/design/joint-plan.md", strict=False
)
def test_bits_that_are_read_early_bring_memory_to_the_node_that_uses_it_most() -> None:
    """The control: the same agent, which reads bits once a window, leaves them interleaved."""
    early, once = placed(EARLY), placed(ONCE)
    assert early.lar_before and early.lar_before < 0.65
    assert early.lar_after and early.lar_after > 0.85
    assert once.lar_after and once.lar_after < 0.75
    assert early.intact and once.intact
