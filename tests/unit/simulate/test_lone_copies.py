"""A guest that has copies comes to one node, on a simulated host under the agent's own loop."""

from contextlib import closing
from pathlib import Path
from typing import Any

from tests.unit.simulate.small_trace import shared_pages
from tests.unit.simulate.test_agent_run import KVM, LONG, simulation_of, spec_of
from vmplace.simulate.agent_run import AgentHost, AgentSetup, quiet
from vmplace.simulate.simulated_guest import SimulatedGuest


class ComesToOneNode:
    """Has the vCPUs of a guest run on the first node once it has copies; keeps what the agent says then."""

    host: AgentHost
    agent: Any

    def __init__(self) -> None:
        self.copied: list[int] = []
        self.notes: set[str] = set()

    def before(self, step: str, guest: SimulatedGuest | None) -> None:
        """Look at the guest's copies, once a window at least."""
        if step != "statistics" or guest is None or not (self.copied or guest.held.any()):
            return
        if not self.copied:
            machine = self.host.machine
            for tid in guest.tids:
                machine.threads.set_cpus(tid, machine.host().nodes[0].cpus)
            self.agent.state.parts.discovery.look_again()
        self.copied.append(int(guest.held.sum()))
        self.notes |= set(self.agent.status.notes)


def test_its_copies_are_dropped_its_memory_follows_and_nobody_complains(tmp_path: Path) -> None:
    events = ComesToOneNode()
    simulation = simulation_of(spec_of(shared_pages(heat=LONG, npages=100)))
    with quiet():
        events.host = host = AgentHost(simulation, AgentSetup("auto", KVM, trouble=events), tmp_path)
        with closing(host.actuator()) as actuator:
            events.agent = agent = host.agent(actuator)
            agent.run(windows=40)
            (guest,) = host.machine.guests.values()
            assert events.copied[0] and not any(events.copied[4:]) and not guest.held.any()
            assert set(guest.nodes().tolist()) == {0} and not events.notes
    (known,) = agent.roster
    (dropping,) = (one for one in known.decisions if one.dropped_bytes)
    assert dropping.dropped_bytes == events.copied[0] * 4096
    assert "no copies: its vCPUs run on node 0 alone, and copies serve several nodes" in dropping.reasons
