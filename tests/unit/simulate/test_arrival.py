"""A guest that arrives is at home sooner if its last host tells what it knew: the agent's own loop, on a
simulated host, in virtual time.

Truth: which vCPU uses each page is declared by the trace.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from tests.unit.simulate.small_trace import arrays_of, shared_pages
from tests.unit.simulate.test_agent_run import KVM, simulation_of, spec_of
from vmplace.agent.actuator import HostActuator
from vmplace.agent.discovered import Discovered
from vmplace.agent.discovery import CachedDiscovery
from vmplace.agent.loop import Agent
from vmplace.agent.news import News
from vmplace.agent.parts import Parts
from vmplace.model.handover import MOST_RUNS, FrameRun, Handover, handover_of, handover_text
from vmplace.policy.plan import PlacementPlan, Snapshot
from vmplace.simulate.agent_host import UNIX_EPOCH_S
from vmplace.simulate.agent_run import AgentHost, AgentSetup, quiet
from vmplace.topology.domain_policy import DomainPolicy, Word

T = TypeVar("T", int, npt.NDArray[np.int64])
UUID = "8f1d3c52-0000-0000-0000-000000000001"
NPAGES, HEAT, PART = 12_000, 200_000, 100


def thread_of(page: T) -> T:
    """Return which thread alone uses the page: they take turns, by parts of the memory."""
    return page // PART % 4


class Arrival(AgentHost):
    """A host on which the guest is a domain of libvirt's, all of whose pages lie on one node at first."""

    def __init__(self, folder: Path, said: DomainPolicy) -> None:
        records = [(w, p, thread_of(p), HEAT, 1) for w in range(6) for p in range(NPAGES)]
        trace = arrays_of(records, pages=NPAGES, threads=4, windows=6)
        simulation = simulation_of(spec_of(trace, nodes="0+2+3+5"), policy="agent:auto")
        super().__init__(simulation, AgentSetup("auto", KVM), folder)
        self.said = said
        self.seen: list[tuple[float, float]] = []

    def lar(self) -> float:
        """Return the share of pages that lie with the vCPU that uses them."""
        (guest,) = self.simulation.guests
        return float((guest.node == guest.vcpu_node[thread_of(np.arange(NPAGES))]).mean())

    def _parts(self, actuator: HostActuator) -> Parts:
        parts, machine = super()._parts(actuator), self.machine

        def find() -> Discovered:
            guests = tuple(replace(one, uuid=UUID, origin="libvirt") for one in machine.topologies())
            return Discovered(guests, policies={UUID: self.said})

        def policy(snapshot: Snapshot) -> PlacementPlan:
            self.seen.append((machine.clock.monotonic(), self.lar()))
            return parts.policy(snapshot)

        discovery = CachedDiscovery(machine.host, machine.free_bytes, find, machine.clock.monotonic)
        return replace(parts, discovery=discovery, policy=policy)

    def managed(self, windows: int) -> Agent:
        with quiet(), closing(self.actuator()) as actuator:
            agent = self.agent(actuator)
            agent.run(windows=windows)
        self.seen.append((self.machine.clock.monotonic(), self.lar()))
        return agent

    def local_after_s(self) -> float:
        """Return when LAR was 0.9 at first."""
        return min(at for at, lar in self.seen if lar >= 0.9)


@pytest.fixture
def handover(tmp_path: Path) -> str:
    host = Arrival(tmp_path / "first", DomainPolicy())
    (guest,) = host.managed(windows=20).roster
    assert guest.pages is not None
    reported = handover_of(
        host.machine.host(), guest.topology, guest.pages, unix_s=host.machine.clock.unix_s(), known_s=300
    )
    assert reported is not None
    return handover_text(reported)


def local_after_s(folder: Path, said: DomainPolicy) -> float:
    host = Arrival(folder, said)
    host.managed(windows=40)
    return host.local_after_s()


@pytest.mark.slow
def test_what_the_last_host_knew_halves_the_time_until_memory_is_local(tmp_path: Path, handover: str):
    without = local_after_s(tmp_path / "without", DomainPolicy())
    reported = local_after_s(tmp_path / "with", DomainPolicy(placement=handover))
    # Its first plan, after one window of 1 s; else windows must show who uses what, and the budget must fill.
    assert reported <= without / 2


def test_a_guest_that_is_left_alone_stays_where_it_came_to(tmp_path: Path, handover: str):
    manual = DomainPolicy((Word("mode", "manual", 1),), has_policy=True, placement=handover)
    host = Arrival(tmp_path / "manual", manual)
    host.managed(windows=3)
    assert {lar for _, lar in host.seen} == {0.25}


def test_what_is_false_is_corrected(tmp_path: Path):
    """A handover that gives each page to the wrong vCPU: pages go home all the same, if later."""
    wrong = Handover(1, int(UNIX_EPOCH_S), 300, ((0,), (1,), (2,), (3,)), tuple(_next_vcpus()))
    host = Arrival(tmp_path / "wrong", DomainPolicy(placement=handover_text(wrong)))
    host.managed(windows=40)
    assert host.seen[-1][1] >= 0.9


def _next_vcpus() -> Iterator[FrameRun]:
    for page in range(MOST_RUNS):
        yield FrameRun(0, 1, 1 << (thread_of(page) + 1) % 4, False, 0)


@pytest.mark.slow
def test_copies_go_as_soon_as_a_migration_is_reported_and_come_back_when_it_is_over(tmp_path: Path):
    """Nothing more is reported of it: after 30 s it is libvirt's word that counts, and there is none."""
    simulation = simulation_of(spec_of(shared_pages(heat=60_000)), policy="agent:auto")
    host = AgentHost(simulation, AgentSetup("auto", KVM), tmp_path)
    copies: list[int] = []
    reported_at: list[int] = []
    with quiet(), closing(host.actuator()) as actuator:
        agent = host.agent(actuator)
        plan = agent.state.parts.policy

        def policy(snapshot: Snapshot) -> PlacementPlan:
            there = [view.topology for view in snapshot.guests]
            copies.append(sum(one.present_bytes for one in actuator.copies(there).values()))
            if copies[-1] and not reported_at:
                reported_at.append(len(copies))
                agent.inbox.tell(News("event-migrating", "g"))
            return plan(snapshot)

        agent.state.parts = replace(agent.state.parts, policy=policy)
        agent.run(windows=400)
    (at,) = reported_at
    assert copies[at - 1] > 0 and copies[at] == 0
    assert max(copies[at + 1 :]) > 0
