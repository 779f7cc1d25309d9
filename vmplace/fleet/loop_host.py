"""What does the agent's own loop bring about on a host with these guests?  In virtual time.

1. Each guest replays a recorded trace, again from its start when it ends, on the node that has most CPUs
   free; memory is where it is first touched.
2. The agent runs as on a real host (simulate/agent_run.py) for ``span_ns`` of the traces' time.
3. The result is of the second half: each node's pressure, as vmplace/model/pressure.py defines it, and what
   each guest takes of a node's bandwidth, from exact counts of accesses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import ABSENT
from vmplace.simulate.agent_run import AgentSetup, run_agent
from vmplace.simulate.guest_run import GuestRun, GuestSpec, share_cpus
from vmplace.simulate.host_file import SimulatedHost
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.simulation import Simulation
from vmplace.simulate.source_views import sensor_of, source_named
from vmplace.simulate.trace import Trace

ALL_WINDOWS = 1 << 30
SPAN_NS = 1.0e9
"""Of the traces' time: 50 s of the agent's."""


@dataclass(frozen=True)
class LoopGuest:
    """A guest that runs one program."""

    trace: Trace
    vcpus: int


@dataclass(frozen=True)
class LoopRun:
    """Each node's pressure, and the share of its first node's bandwidth that each guest takes, in order."""

    nodes: tuple[float, ...]
    guests: tuple[float, ...]


def loop_pressures(
    host: SimulatedHost,
    guests: Sequence[LoopGuest],
    span_ns: float = SPAN_NS,
    nodes: Sequence[Sequence[int]] | None = None,
) -> tuple[float, ...]:
    """Return each node's pressure once the agent was at work for half of ``span_ns``.

    ``nodes``: the indexes of each guest's nodes; ``loop_nodes`` by default.
    """
    return loop_run(host, guests, nodes or loop_nodes(host, guests), span_ns).nodes


def loop_run(
    host: SimulatedHost, guests: Sequence[LoopGuest], nodes: Sequence[Sequence[int]], span_ns: float = SPAN_NS
) -> LoopRun:
    """Return what guests on these nodes bring about once the agent was at work for half of ``span_ns``."""
    specs = [
        GuestSpec(f"guest-{number}", guest.trace, tuple(mine), guest.vcpus, pinned=True)
        for number, (guest, mine) in enumerate(zip(guests, nodes, strict=True))
    ]
    runs = [RepeatedRun(spec, host, ALL_WINDOWS) for spec in specs]
    share_cpus([*runs], host)
    source = source_named("ad")
    timed = TimedSimulation(host, [*runs], POLICIES["agent:auto"], source, PlacementCosts())
    timed.span_ns = span_ns
    run_agent(timed, AgentSetup("auto", sensor_of(source)))
    span = timed.now - timed.then_ns
    loads = (timed.meter.accesses - timed.accesses_then).sum(axis=0) / span
    limits = host.system.controller
    found = np.divide(loads, limits, out=np.zeros(len(limits)), where=limits > 0)
    taken = [
        float((timed.done[spec.name].dram - timed.dram_then[spec.name]) / span / limits[spec.nodes[0]])
        for spec in specs
    ]
    return LoopRun(tuple(found.tolist()), tuple(taken))


class RepeatedRun(GuestRun):
    """A guest whose program begins again when it ends."""

    def advance(self) -> bool:
        """Go to the next window, or with fresh memory to the first."""
        if self.window + 1 < self.windows:
            return super().advance()
        self.put(np.arange(len(self.node)), ABSENT)
        self.window = 0
        self._open()
        return True


class TimedSimulation(Simulation):
    """A simulation that ends after ``span_ns``, and keeps the accesses of its first half apart.

    ``dram_then``: the same by guest.
    """

    span_ns: float = SPAN_NS
    then_ns: float = 0.0
    accesses_then: Matrix

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.accesses_then = np.zeros_like(self.meter.accesses)
        self.dram_then = dict.fromkeys(self.done, 0.0)

    def go_on(self, end_ns: float) -> None:
        """Let time pass, but not beyond the end: then no guest runs any more."""
        if not self.then_ns and end_ns >= self.span_ns / 2:
            super().go_on(self.span_ns / 2)
            self.then_ns, self.accesses_then = self.now, self.meter.accesses.copy()
            self.dram_then = {name: done.dram for name, done in self.done.items()}
        super().go_on(min(end_ns, self.span_ns))
        if self.now >= self.span_ns:
            self.active.clear()


def loop_nodes(host: SimulatedHost, guests: Sequence[LoopGuest]) -> list[tuple[int, ...]]:
    """Return each guest's nodes: the one with most CPUs free, or all where none has enough."""
    free, found = host.cpus.copy(), list[tuple[int, ...]]()
    for guest in guests:
        best = int(free.argmax())
        nodes = (best,) if free[best] >= guest.vcpus else tuple(np.flatnonzero(host.cpus > 0).tolist())
        free[list(nodes)] -= guest.vcpus / len(nodes)
        found.append(nodes)
    return found
