"""The agent itself on a simulated host: its loop, its budgets, trials, vetoes and journal, in virtual time.

Nothing of the agent is rewritten here: loop.py runs as on a real host, and so do the actuator with mover,
replicator and journal, the readings, the trials.  Only what lies under them is simulated (agent_host.py,
agent_source.py).  Runs are the same each time for the same seed.
"""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vmplace.agent.actuator import HostActuator
from vmplace.agent.config import GuestRule, LoadedConfig
from vmplace.agent.config_sections import Config
from vmplace.agent.discovered import Discovered
from vmplace.agent.discovery import CachedDiscovery
from vmplace.agent.host_calls import HostCalls
from vmplace.agent.loop import Agent
from vmplace.agent.parts import Parts
from vmplace.errors import VmplaceError
from vmplace.model.metrics import Matrix
from vmplace.outside import read_whole
from vmplace.policy.plan import GuestSettings
from vmplace.policy.policy_auto import Horizon
from vmplace.policy.registry import begun
from vmplace.sampling.guest_cost import ByCpus, MemoryRate, cost_of, lar_of, vcpus_by_cpus
from vmplace.simulate.agent_host import SimulatedMachine, Trouble, VirtualClock, VirtualWakeup
from vmplace.simulate.agent_source import TraceSource
from vmplace.simulate.guest_counters import GuestCounters
from vmplace.simulate.kernel_balancing import KernelBalancing
from vmplace.simulate.simulation import SEED, Simulation
from vmplace.simulate.source_views import CLOCK_SCALE, Sensor
from vmplace.topology.guest import GuestTopology
from vmplace.topology.procfs import NORMAL_BALANCING

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of the run's own is made in it


@dataclass(frozen=True)
class AgentSetup:
    """How the agent is set up; ``scale``: its seconds for one of the trace's, ``config``: what differs."""

    policy: str
    sensor: Sensor
    scale: float = CLOCK_SCALE
    seed: int = SEED
    config: dict[str, object] = field(default_factory=dict)
    trouble: Trouble | None = None


class SimulatedCost:
    """Cycles per instruction of the simulated vCPUs, by exact counts."""

    name = "simulated"

    def __init__(self, simulation: Simulation) -> None:
        self._done, self._last = simulation.done, dict[str, GuestCounters]()
        self._runs = {guest.spec.name: guest for guest in simulation.guests}
        self._ends = np.cumsum(simulation.host.cpus).astype(int)
        self._rates: dict[str, MemoryRate] = {}

    def cost(self, guest: GuestTopology) -> float | None:
        """Return vCPU ns per instruction since the last call."""
        now, last = self._done[guest.name], self._last.get(guest.name)
        self._last[guest.name] = replace(now)
        if last is None or now.span_ns == last.span_ns:
            return None
        span_ns = now.span_ns - last.span_ns
        self._rates[guest.name] = MemoryRate(
            (now.vcpu_ns - last.vcpu_ns) / span_ns,
            (now.dram - last.dram) / span_ns * 1000,
            1 / self._runs[guest.name].cpu_share - 1,
            lar_of(now.local - last.local, now.dram - now.local - (last.dram - last.local)),
            by_cpus=self._by_cpus(guest, (now.by_node - last.by_node) / span_ns * 1000),
        )
        return cost_of(now.vcpu_ns - last.vcpu_ns, now.instructions - last.instructions)

    def _by_cpus(self, guest: GuestTopology, by_node: Matrix) -> ByCpus:
        """Return the accesses by CPUs; nothing of a guest with vCPUs that may run on several nodes."""
        groups = vcpus_by_cpus(guest)
        nodes = [self._nodes_of(cpus) for cpus in groups]
        if any(len(some) != 1 for some in nodes):
            return ()
        vcpus = np.zeros(len(by_node))
        for (node,), mine in zip(nodes, groups.values(), strict=True):
            vcpus[node] += len(mine)
        each = zip(nodes, groups.items(), strict=True)
        return tuple(
            (cpus, len(mine), float(by_node[node] * len(mine) / vcpus[node]))
            for (node,), (cpus, mine) in each
        )

    def _nodes_of(self, cpus: tuple[int, ...]) -> list[int]:
        nodes: list[int] = np.unique(np.searchsorted(self._ends, cpus, side="right")).tolist()
        return nodes

    def rate(self, guest: GuestTopology) -> MemoryRate | None:
        """Return CPUs in use and DRAM accesses, in the trace's time: it is the program's own."""
        return self._rates.get(guest.name)

    def forget(self, guest: GuestTopology) -> None:
        """Drop the last reading."""
        self._last.pop(guest.name, None)

    def close(self) -> None:
        """Hold nothing."""


class AgentHost:
    """A simulated host on which an agent can be started, and again: its journal stays in ``folder``."""

    def __init__(self, simulation: Simulation, setup: AgentSetup, folder: Path) -> None:
        self.simulation, self.setup = simulation, setup
        clock = VirtualClock(simulation, setup.scale)
        self.machine = SimulatedMachine(simulation, clock, folder / "proc", setup.trouble)
        if not (setup.sensor.bits or setup.sensor.period):
            self._boot_stock_kernel(folder / "proc/sys/kernel/numa_balancing")
        self.config = Config(
            policy=setup.policy,
            source=setup.sensor.name,
            state_dir=str(folder),
            journal=str(folder / "journal"),
            **setup.config,  # type: ignore[arg-type]
        )

    def _boot_stock_kernel(self, sysctl: Path) -> None:
        """Have the kernel balance, as stock hosts do until somebody switches it off."""
        sysctl.parent.mkdir(parents=True, exist_ok=True)
        sysctl.write_text("1\n")
        self.simulation.kernel = KernelBalancing(lambda: bool(read_whole(sysctl) & NORMAL_BALANCING))

    def actuator(self, *, killed_pid: int | None = None) -> HostActuator:
        """Return the real actuator, over the simulated kernel."""
        machine, clock = self.machine, self.machine.clock
        calls = HostCalls(
            machine,
            machine.proc,
            clock.monotonic_ns,
            clock.sleep,
            machine.opened,
            machine.replicate,
            machine.threads,
            machine.proc / "sys",
        )
        return HostActuator(self.config, killed_pid=killed_pid, calls=calls)

    def agent(self, actuator: HostActuator, wakeup: VirtualWakeup | None = None) -> Agent:
        """Return an agent that was not started yet; without ``wakeup`` it ends with the last guest."""
        wakeup = wakeup or VirtualWakeup(self.machine.clock, self.simulation)
        return Agent(LoadedConfig(self.config, _rules(self.simulation)), self._parts(actuator), wakeup)

    def _parts(self, actuator: HostActuator) -> Parts:
        machine, setup = self.machine, self.setup
        find = lambda: Discovered(machine.topologies())  # noqa: E731
        return Parts(
            discovery=CachedDiscovery(machine.host, machine.free_bytes, find, machine.clock.monotonic),
            source=TraceSource(machine, setup.sensor, setup.seed),
            policy=begun(setup.policy, Horizon(setup.scale, 1.0), actuator.ties()),
            policy_name=setup.policy,
            actuator=actuator,
            # A stock kernel makes no copies.
            huge_replicas=True,
            replica_ratio=0.0 if setup.sensor.name == "idle" else self.config.budget.replica_ratio,
            counters=SimulatedCost(self.simulation),
            clock=machine.clock,
        )


def run_agent(simulation: Simulation, setup: AgentSetup) -> Agent:
    """Let the agent manage the simulation's guests until the last one ended; return what it knows then."""
    with own_folder() as folder, quiet():
        host = AgentHost(simulation, setup, folder)
        with contextlib.closing(host.actuator()) as actuator:
            agent = host.agent(actuator)
            agent.run()
    return agent


def agent_rates_after(simulation: Simulation, setup: AgentSetup, span_ns: float) -> dict[str, float]:
    """Return each guest's DRAM accesses per ns once the agent was at work for ``span_ns``.

    Raises VmplaceError if the agent ended before.
    """
    with own_folder() as folder, quiet():
        host = AgentHost(simulation, setup, folder)
        until = _Until(host.machine.clock, simulation, span_ns)
        with contextlib.closing(host.actuator()) as actuator:
            host.agent(actuator, until).run()
    if until.rates is None:
        raise VmplaceError(f"the agent ended before {span_ns / 1e9:g} s of simulated time were over")
    return until.rates


class _Until(VirtualWakeup):
    """Ends the agent at a time, and keeps the guests' rates of that moment: as it ends, copies go."""

    def __init__(self, clock: VirtualClock, simulation: Simulation, end_ns: float) -> None:
        super().__init__(clock, simulation)
        self._end_ns = end_ns
        self.rates: dict[str, float] | None = None

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        """Return whether the time is over, or all guests are at their end."""
        if self.rates is None and self._simulation.now >= self._end_ns:
            self.rates = self._simulation.rates()
        return self.rates is not None or super().stopping


def _rules(simulation: Simulation) -> tuple[GuestRule, ...]:
    """Return the operator's word on protected guests, which libvirt does not vouch for here."""
    return tuple(
        GuestRule(guest.spec.name, GuestSettings(protected=True), origin="kvm")
        for guest in simulation.guests
        if guest.spec.slowdown_bound is not None
    )


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder in memory where there is one: a journal is written for each batch."""
    where = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="vmplace-simulate-", dir=where) as name:
        yield Path(name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what the agent logs of each move to itself."""
    log = logging.getLogger("vmplace")
    before = log.level
    log.setLevel(max(before, logging.ERROR + 1))
    try:
        yield
    finally:
        log.setLevel(before)
