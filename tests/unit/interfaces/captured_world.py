"""An agent on a captured host, for what commands print: its nodes, and guests that are made up."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.agent.agent_world import HVA, World
from vmplace.actuation.result import Copies
from vmplace.agent import cost
from vmplace.agent.config import GuestRule
from vmplace.agent.config_sections import BudgetSection
from vmplace.agent.loop import Agent
from vmplace.policy.plan import GuestSettings, Mode
from vmplace.sampling.sample import SampleBatch
from vmplace.sampling.served import ServedAccesses
from vmplace.topology.guest import GuestTopology, Movability, RamRange, Vcpu
from vmplace.topology.host import HostTopology
from vmplace.topology.sysfs import read_host

HOSTS = Path(__file__).parents[2] / "data/hosts"
SERVED = ServedAccesses(1_000_000, (0, 0, 50, 150, 0), (0, 0, 1000, 3000, 0), (0, 0, 100_000, 600_000, 0))
MIB_OF = {"db1": 64, "web-frontend-2": 32, "build-agent-with-a-long-name-07": 48, "passthrough": 16}


@dataclass
class Captured(World):
    """The captured machine."""

    captured: str = "16amd64-4n8c"

    def host(self) -> HostTopology:
        """Return the machine's nodes."""
        return read_host(HOSTS / self.captured)

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return what the world says, of this machine's nodes."""
        nids, there = self.host().nids, self.nid_of.get(guest.name)
        found = super().harvest(guest)
        # Samples have indexes of nodes: this machine's nids may have holes.
        index = np.int8(0 if there is None else nids.index(there))
        ranges = tuple(replace(one, node_index=np.full_like(one.node_index, index)) for one in found.ranges)
        return replace(found, nids=nids, ranges=ranges)


def made_up(name: str, host: HostTopology, at: int) -> GuestTopology:
    """Return a guest of two vCPUs on the ``at``-th node that has CPUs."""
    nodes = [node for node in host.nodes if node.cpus]
    cpus = nodes[at % len(nodes)].cpus
    pinned = name == "passthrough"
    kind = Movability.PINNED if pinned else Movability.MOVABLE
    why = "a device of the host has it (vfio)" if pinned else "anonymous memory"
    ram = RamRange(HVA, MIB_OF[name] << 8, 0, 4096, kind, why)
    vcpus = tuple(Vcpu(i, 2000 + 10 * at + i, (cpus[i % len(cpus)],)) for i in range(2))
    return GuestTopology(name, 1000 + at, 1, "libvirt", vcpus, (ram,))


def captured_agent(name: str) -> Agent:
    """Return an agent that has looked at four guests of a captured machine, and moved some."""
    world = Captured([], captured=name, served=SERVED, copied={"web-frontend-2": Copies(4 << 20, 1 << 20)})
    host = world.host()
    world.running = [made_up(name, host, at) for at, name in enumerate(MIB_OF)]
    # However long a window takes here, nothing waits for the budget.
    budget = BudgetSection(mb_per_s=100_000)
    agent = world.agent(GuestRule("web-*", GuestSettings(Mode.ADVISE)), budget=budget)
    agent.run(windows=2)
    world.nid_of["db1"] = host.nids[-1]
    agent.run(windows=3)
    return agent


@contextlib.contextmanager
def fixed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have what differs from run to run be the same: pid and cost of the agent."""
    with monkeypatch.context() as patch:
        patch.setattr(cost, "cpu_seconds", lambda: 1.5)
        patch.setattr(cost, "rss_bytes", lambda: 40 << 20)
        patch.setattr("vmplace.agent.loop.os.getpid", lambda: 4242)
        yield
