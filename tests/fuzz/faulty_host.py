"""A simulated host on which steps go wrong by seed, and which notes what the agent did to it."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vmplace.actuation.result import ActuationResult
from vmplace.agent.actuator import HostActuator
from vmplace.agent.parts import Parts
from vmplace.errors import VmplaceError
from vmplace.policy.host_view import Indexes
from vmplace.policy.plan import Move, PlacementPlan, Snapshot
from vmplace.sampling.guest_cost import MemoryRate
from vmplace.simulate.agent_run import AgentHost, AgentSetup, SimulatedCost
from vmplace.simulate.guest_run import share_cpus
from vmplace.simulate.simulated_guest import HVA, SimulatedGuest
from vmplace.simulate.simulation import Simulation
from vmplace.simulate.source_views import CLOCK_SCALE
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.host import HostTopology

VICTIM = "victim"
"""The guest that may end."""
SOME = 0.06
"""The chance that a step goes wrong."""
ERRORS = (errno.ENOMEM, errno.EBUSY, errno.ENODEV, errno.EIO)
KERNEL = ("move_pages", "page_nids", "replicate", "statistics", "info", "open")
SLOW_LOOK_S = 10.0
FEW_PAGES = 16
"""A budget that has no more left is used up: what it gets while the last chunk is moved."""
LOOKS = ("host", "guests", "arm", "read", "harvest")


class Killed(BaseException):
    """The agent ends here, as by an error that nobody catches; what Python cleans up is still cleaned up."""


class Faults:
    """Lets steps of the host go wrong with a small chance; the same ones for the same seed."""

    def __init__(self, simulation: Simulation, seed: int, kills: int = 1) -> None:
        self._simulation, self._chance = simulation, np.random.default_rng(seed)
        self.on, self.kills, self.count = True, kills, 0
        self.jumped_s, self.is_offline = 0.0, False

    def before(self, step: str, guest: SimulatedGuest | None) -> None:
        """Let the step go wrong, or not."""
        if not self.on or self._chance.random() > SOME:
            return
        self.count += 1
        kind = int(self._chance.integers(6))
        if kind == 0 and self.kills:
            self.kills -= 1
            raise Killed
        if kind == 1 and guest is not None and guest.name == VICTIM:
            self._end(guest)
        elif kind == 2:
            self.jumped_s += float(self._chance.normal(0, 1e6))
        elif kind == 3 and step == "host":
            self.is_offline = not self.is_offline
        elif kind == 5 and step == "guests":
            # Only time passes: what bounds the wait for libvirt itself is no part of this.
            self._simulation.go_on(self._simulation.now + SLOW_LOOK_S * 1e9 / CLOCK_SCALE)
        elif step in KERNEL:
            raise OSError(int(self._chance.choice(ERRORS)), "made up")
        elif step in LOOKS or step == "counters":
            raise VmplaceError(f"{step}: made up")

    def after_move(self) -> None:
        """Let the agent be killed when the kernel has moved pages, and nobody knows it yet."""
        if self.on and self.kills and self._chance.random() < SOME / 2:
            self.count += 1
            self.kills -= 1
            raise Killed

    def _end(self, guest: SimulatedGuest) -> None:
        """End the guest's process, whatever is being done with it."""
        if guest.run in self._simulation.active:
            self._simulation.active.remove(guest.run)
            self._simulation.finished[guest.name] = self._simulation.now
            share_cpus(self._simulation.active, self._simulation.host)


class FaultyCost(SimulatedCost):
    """Counters that are gone now and then."""

    def __init__(self, simulation: Simulation, faults: Faults) -> None:
        super().__init__(simulation)
        self._faults = faults

    def cost(self, guest: GuestTopology) -> float | None:
        """Return vCPU ns per instruction, or raise."""
        self._faults.before("counters", None)
        return super().cost(guest)

    def rate(self, guest: GuestTopology) -> MemoryRate | None:
        """Return the rates, or raise."""
        self._faults.before("counters", None)
        return super().rate(guest)


class FaultyHost(AgentHost):
    """A host of which a node goes offline and comes back, and whose time of day jumps.

    It notes what was done since an agent began: ``moves`` of each page by guest; ``away`` has when how many
    pages left their first node or got copies; ``wrong`` what must not be.
    """

    def __init__(
        self, simulation: Simulation, setup: AgentSetup, folder: Path, faults: Faults, *, is_restless: bool
    ) -> None:
        super().__init__(simulation, setup, folder)
        self._faults, self._is_restless = faults, is_restless
        self._first = {name: guest.run.node.copy() for name, guest in self.machine.guests.items()}
        self.moved = 0
        self.begin_life()
        self._carry_out, self._make_copies = self.machine._move, self.machine._copy
        self.machine._move = self._counted_move  # type: ignore[method-assign]
        self.machine._copy = self._counted_copies  # type: ignore[method-assign]
        clock = self.machine.clock
        unix_s = clock.unix_s
        clock.unix_s = lambda: unix_s() + faults.jumped_s  # type: ignore[method-assign]

    def begin_life(self) -> None:
        """Forget what an earlier agent did."""
        self.away: list[tuple[float, int]] = []
        self.moves = {name: np.zeros(len(first), np.int64) for name, first in self._first.items()}
        self.wrong: list[str] = []
        self._shown: tuple[int, ...] | None = None

    def end_process(self) -> None:
        """Close what the agent's process had open: KVM drops all copies then, whatever went wrong before."""
        for guest in self.machine.guests.values():
            if guest.run in self.simulation.active:
                self.machine._drop(guest, np.arange(guest.slots))

    def watch(self, actuator: HostActuator) -> None:
        """Note if the failure of one guest leaves the other unserved, though the budget is not used up."""
        mover, clock = actuator._mover, self.machine.clock
        apply = mover.apply

        def watched(*given: Any, **options: Any) -> ActuationResult:
            result = apply(*given, **options)
            failed = {name for name in self._first if any(f"guest {name}:" in one for one in result.failures)}
            unserved = {one.guest for one in result.outcomes if one.left} - failed
            unused = mover._budget.available_bytes(clock.monotonic_ns()) // PAGE_BYTES
            if failed and unserved and unused >= FEW_PAGES:
                self.wrong.append("a guest was not served, as another one failed")
            return result

        mover.apply = watched  # type: ignore[method-assign]

    def _counted_move(self, guest: SimulatedGuest, pages: Indexes, target: int) -> None:
        self.moved += len(pages)
        self.moves[guest.name][pages] += 1
        left = int(np.count_nonzero(self._first[guest.name][pages] != target))
        self.away.append((self.machine.clock.monotonic(), left))
        if self._faults.on and self._shown and self.machine.nids[target] not in self._shown:
            self.wrong.append("pages were moved to a node that is offline")
        self._carry_out(guest, pages, target)
        self._faults.after_move()

    def _counted_copies(self, guest: SimulatedGuest, slots: Indexes) -> tuple[int, int]:
        before, at_s = guest.replicated, self.machine.clock.monotonic()
        made = self._make_copies(guest, slots)
        self.away.append((at_s, guest.replicated - before))
        return made

    def _parts(self, actuator: HostActuator) -> Parts:
        parts = super()._parts(actuator)
        look = parts.discovery.host
        parts.discovery.host = lambda: self._without_node(look())  # type: ignore[method-assign]
        policy = self._restless if self._is_restless else parts.policy
        return replace(parts, policy=policy, counters=FaultyCost(self.simulation, self._faults))

    def _without_node(self, host: HostTopology) -> HostTopology:
        if self._faults.is_offline:
            (gone,) = host.nids[1:]
            keep = {key: value for key, value in host.distances.items() if gone not in key}
            rates = {key: value for key, value in host.bandwidths.items() if gone not in key}
            host = replace(host, nodes=host.nodes[:1], distances=keep, bandwidths=rates)
        self._shown = host.nids
        return host

    def _restless(self, snapshot: Snapshot) -> PlacementPlan:
        """Plan to send all pages of all guests to the other node, each time."""
        names = [guest.topology.name for guest in snapshot.guests]
        running = [guest for guest in self.machine.guests.values() if guest.name in names]
        return PlacementPlan(tuple(map(self._swap, running)) if len(snapshot.host.nids) > 1 else ())

    def _swap(self, guest: SimulatedGuest) -> Move:
        nids, there = np.array(self.machine.nids, np.int16), guest.run.node.astype(np.intp)
        frames, there = guest.run.spec.trace.frame[there >= 0], there[there >= 0]
        hva, one = (HVA + frames * PAGE_BYTES).astype(np.uint64), np.ones(len(frames), np.uint16)
        return Move(guest.name, hva, one, nids[there], nids[1 - there], "all pages change places")
