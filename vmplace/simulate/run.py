"""How long do the guests take on this host under this policy?  Recorded traces, window by window.

1. Every guest is in a window of its own: a number of accesses.  The memory system is solved for all of
   them together; time goes on to the next moment at which a guest ends its window (or its pause).
2. There the guest's source shows what the window touched, the policy plans for all guests, and what it
   changes costs the guest concerned a pause: per page moved, per copy made, per page collapsed.
3. The next window begins: new pages are placed where they are first touched, copies that it writes to
   collapse.

The oracle knows each window before it begins, moves for nothing and divides pages: for one guest it is
the least time that any placement reaches under this model, but for ``GAP`` of the descent.  For several
it is a reference, not a proof: it makes the most of each moment, not of their sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.errors import VmplaceError
from vmplace.model.memory_system import solved
from vmplace.model.metrics import Matrix
from vmplace.policy.descent import PageTask, descended
from vmplace.policy.host_view import ABSENT, REPLICATED, HostView, NodeIndexes, demand, traffic
from vmplace.simulate.guest_run import GuestRun, GuestSpec, share_cpus
from vmplace.simulate.host_file import SimulatedHost
from vmplace.simulate.registry import Reach, SimulatedPolicy
from vmplace.simulate.result import Meter, SimulationResult, result_of
from vmplace.simulate.source_views import Source

ALL_WINDOWS = 1 << 30
SEED = 1


@dataclass(frozen=True)
class PlacementCosts:
    """Pause of the guest per 4 KiB page (ns): moving it, or making a copy; dropping all of its copies."""

    move_ns: float = 1000.0
    collapse_ns: float = 4000.0


def simulate(  # noqa: PLR0913  (what is simulated; each has its own type)
    host: SimulatedHost,
    specs: Sequence[GuestSpec],
    policy: SimulatedPolicy,
    source: Source,
    windows: int = ALL_WINDOWS,
    costs: PlacementCosts | None = None,
) -> SimulationResult:
    """Return what comes out when ``specs`` run under ``policy`` for at most ``windows`` windows each."""
    if not specs:
        raise VmplaceError("there is no guest to simulate")
    guests = [GuestRun(spec, host, windows) for spec in specs]
    share_cpus(guests, host)
    return _Simulation(host, guests, policy, source, costs or PlacementCosts()).run()


class _Simulation:
    def __init__(
        self,
        host: SimulatedHost,
        guests: list[GuestRun],
        policy: SimulatedPolicy,
        source: Source,
        costs: PlacementCosts,
    ) -> None:
        self.host, self.guests, self.policy, self.source, self.costs = host, guests, policy, source, costs
        self.chance = np.random.default_rng(SEED)
        self.meter = Meter(host)
        self.left = {guest.spec.name: 1.0 for guest in guests}
        self.pause = {guest.spec.name: 0.0 for guest in guests}
        self.now = 0.0

    def run(self) -> SimulationResult:
        finished: dict[str, float] = {}
        active = list(self.guests)
        for guest in active:
            self._begin_window(guest)
        while active:
            for guest in self._pass_time(active):
                if not self._end_window(guest, active):
                    finished[guest.spec.name] = self.now
                    active.remove(guest)
        return result_of(self.guests, finished, self.meter)

    def _pass_time(self, active: list[GuestRun]) -> list[GuestRun]:
        """Let time pass until the first guest has something to do; return who ended a window."""
        running = [guest for guest in active if self.pause[guest.spec.name] == 0.0]
        resting = {guest.spec.name: self.pause[guest.spec.name] for guest in active if guest not in running}
        if not running:
            span = min(resting.values())
            self._advance(resting, span)
            return []
        traffics = self._traffics(running)
        load = solved(self.host.system, demand(tuple(g.evidence(exact=True) for g in running), traffics))
        paces = [rate / guest.accesses for rate, guest in zip(load.rates, running, strict=True)]
        ends = [self.left[guest.spec.name] / pace for guest, pace in zip(running, paces, strict=True)]
        span = min([*ends, *resting.values()])
        total = np.sum([one * pace for one, pace in zip(traffics, paces, strict=True)], axis=0) * span
        self.meter.add(total, load, span)
        for guest, pace in zip(running, paces, strict=True):
            self.left[guest.spec.name] -= pace * span
        self._advance(resting, span)
        return [guest for guest, end in zip(running, ends, strict=True) if end <= span * (1 + 1e-12)]

    def _advance(self, resting: dict[str, float], span: float) -> None:
        self.now += span
        for name, pause in resting.items():
            # What is below a picosecond is rounding: a guest that rests for it would end no window.
            self.pause[name] = pause - span if pause - span > 1e-3 else 0.0

    def _traffics(self, running: list[GuestRun]) -> list[Matrix]:
        if self.policy.reach is not Reach.FUTURE:
            return [traffic(guest.truth.dram, guest.node) for guest in running]
        tasks = []
        for guest in running:
            known = guest.evidence(exact=True)
            near = bool((self.host.system.controller[guest.worker] > 0).all())
            free = np.zeros(len(known.node))
            tasks.append(PageTask(known, ~known.written & np.bool_(near), free))
        return descended(self.host.system, tasks, steps=40).traffics

    def _end_window(self, guest: GuestRun, active: list[GuestRun]) -> bool:
        """Show the window, plan, and begin the next; False if it was the guest's last."""
        if self.policy.reach is Reach.WATCHED:
            guest.watch(self.source, self.chance)
        if not guest.advance():
            guest.node[:] = ABSENT
            return False
        self.left[guest.spec.name] = 1.0
        if self.policy.reach is Reach.WATCHED:
            for other, plan in zip(active, self.policy.plan(self._view(active)), strict=True):
                self._apply(other, plan)
        self._begin_window(guest)
        return True

    def _begin_window(self, guest: GuestRun) -> None:
        self._place_fresh(guest)
        self.pause[guest.spec.name] += guest.collapse() * self.costs.collapse_ns

    def _place_fresh(self, guest: GuestRun) -> None:
        fresh = guest.fresh
        guest.node[fresh] = guest.first_touch_nodes(fresh)
        if self.policy.reach is Reach.NEW:
            guest.node[fresh] = self.policy.plan(self._view([guest]))[0][fresh]
        for index in np.flatnonzero(self._free_pages() < 0):
            self._spill(guest, fresh, int(index))

    def _spill(self, guest: GuestRun, fresh: npt.NDArray[np.intp], full: int) -> None:
        """Put the latest of the new pages that a node has no room for on the nearest ones that have."""
        system = self.host.system
        for target in np.argsort(system.latency[full] + 1e9 * (system.controller == 0), kind="stable"):
            free = self._free_pages()
            over, room = int(max(-free[full], 0)), int(max(free[target], 0))
            here = fresh[guest.node[fresh] == full]
            guest.node[here[max(len(here) - min(over, room), 0) :]] = target
        if self._free_pages()[full] < 0:
            raise VmplaceError(f"host {self.host.name} has too little memory for the guests")

    def _free_pages(self) -> Matrix:
        """Return the 4 KiB pages that each node has left; below zero what is too much."""
        free = self.host.capacity_pages.copy()
        for guest in self.guests:
            free -= [np.count_nonzero(guest.node == index) for index in range(len(free))]
            free -= np.where(self.host.system.controller > 0, np.count_nonzero(guest.node == REPLICATED), 0)
        return free

    def _apply(self, guest: GuestRun, plan: NodeIndexes) -> None:
        """Move and copy pages as planned, as far as there is room, and let the guest pay for it."""
        nodes = int(np.count_nonzero(self.host.system.controller > 0))
        free = self._free_pages()
        wanted = (plan != guest.node) & (guest.node != ABSENT)
        for target in np.unique(plan[wanted]):
            pages = np.flatnonzero(wanted & (plan == target))
            memory = self.host.system.controller > 0
            room = int(free[memory].min() if target == REPLICATED else free[target])
            kept = pages[: max(room, 0)]
            guest.counts.refused += len(pages) - len(kept)
            guest.node[kept] = target
            # A page that went to and fro would else be moved the more readily, the longer it did.
            guest.seen[kept] = 0
            copies = nodes - 1 if target == REPLICATED else 1
            guest.counts.replicated += len(kept) if target == REPLICATED else 0
            guest.counts.moved += len(kept) if target != REPLICATED else 0
            self.pause[guest.spec.name] += len(kept) * copies * self.costs.move_ns
            free = self._free_pages()

    def _view(self, active: list[GuestRun]) -> HostView:
        guests = tuple(guest.evidence() for guest in active)
        return HostView(self.host.system, self.host.capacity_pages, guests, self.costs.move_ns)
