"""How long do the guests take on this host under this policy?  Recorded traces, moment by moment.

1. Every guest is in a window of its own: a number of accesses.  The memory system is solved for all of
   them together; time goes on to the next moment at which a guest ends its window or its pause, or the
   agent wakes.
2. The agent wakes every ``WAKE_NS`` and reads the counters.  If these changed, or if it did not look for a
   while, the source shows what was touched since the last look and the policy plans for all guests.
3. What it changes holds the guest up: a vCPU per page moved or copied, all of them for the TLB flush of
   each batch; a write to a page with copies collapses these, as soon as the window with the write begins.
4. New pages are placed where they are first touched.
"""

from collections.abc import Sequence

import numpy as np

from vmplace.errors import VmplaceError
from vmplace.model.memory_system import Load, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import (
    ABSENT,
    HUGE_PAGES,
    REPLICATED,
    Counters,
    HostPlacement,
    HostView,
    Indexes,
    NodeIndexes,
    demand,
)
from vmplace.simulate.agent_clock import WAKE_NS, AgentClock
from vmplace.simulate.guest_counters import GuestCounters, counters_now
from vmplace.simulate.guest_run import GuestRun, share_cpus
from vmplace.simulate.host_file import SimulatedHost
from vmplace.simulate.kernel_balancing import KernelBalancing
from vmplace.simulate.look import Look, Part
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.registry import Planner, Reach, SimulatedPolicy
from vmplace.simulate.result import Meter, SimulationResult, result_of
from vmplace.simulate.scheduler import scheduled
from vmplace.simulate.source_views import Source, looked

SEED = 1
MOST_SOLUTIONS = 16
"""So many loads are kept: of the sets of guests that run together while one of them rests."""
Asked = tuple[tuple[int, float, float], ...]


class Simulation:
    """Guests on a host, and what time it is there; ``go_on`` lets it pass."""

    def __init__(
        self,
        host: SimulatedHost,
        guests: list[GuestRun],
        policy: SimulatedPolicy,
        source: Source,
        costs: PlacementCosts,
    ) -> None:
        self.host, self.guests, self.policy, self.source, self.costs = host, guests, policy, source, costs
        self.planner: Planner = policy.planner()
        self.chance = np.random.default_rng(SEED)
        self.meter = Meter(host)
        self.left = {guest.spec.name: 1.0 for guest in guests}
        self.pause = {guest.spec.name: 0.0 for guest in guests}
        self.shown: dict[str, list[Part]] = {guest.spec.name: [] for guest in guests}
        self.clock = AgentClock()
        self.now = self.looked_at = 0.0
        self.solutions: dict[Asked, tuple[list[Matrix], Load]] = {}
        self.watched = policy.reach is Reach.WATCHED
        self.kernel: KernelBalancing | None = None
        self.recorded = policy.reach in (Reach.WATCHED, Reach.AGENT)
        self.done = {guest.spec.name: GuestCounters() for guest in guests}
        self.active = list(guests)
        self.finished: dict[str, float] = {}
        for guest in guests:
            self._begin_window(guest)

    def run(self) -> SimulationResult:
        """Return what came out when all guests are at their end."""
        self.go_on(np.inf)
        return result_of(self.guests, self.finished, self.meter)

    def rates_after(self, span_ns: float) -> dict[str, float]:
        """Return the accesses per ns of the guests that still run then."""
        self.go_on(span_ns)
        return self.rates()

    def rates(self) -> dict[str, float]:
        """Return the accesses per ns of the guests that run at this moment."""
        names = [guest.spec.name for guest in self.active]
        return dict(zip(names, self._load(self.active).rates.tolist(), strict=True)) if names else {}

    def go_on(self, end_ns: float) -> None:
        """Let time pass until ``end_ns``, or until no guest runs any more."""
        active = self.active
        while active and self.now < end_ns:
            for guest in self._pass_time(active, end_ns - self.now):
                if not self._end_window(guest):
                    self.finished[guest.spec.name] = self.now
                    active.remove(guest)
                    # A guest that is done leaves its CPUs to the others.
                    self.schedule()
            if self.watched and active and self.now >= self.clock.next_wake_ns:
                self._wake(active)
            if self.kernel and active and self.now >= self.kernel.next_wake_ns:
                self._balance(self.kernel, active)

    def schedule(self) -> None:
        """Let vCPUs run where they may, and where there are CPUs."""
        for guest, nodes in zip(self.active, scheduled(self.active, self.host), strict=True):
            moved = int(np.count_nonzero(nodes != guest.vcpu_node))
            if moved:
                self.pause[guest.spec.name] += self.costs.vcpu_move_ns * moved / len(nodes)
                guest.run_on(nodes)
        share_cpus(self.active, self.host)

    def _pass_time(self, active: list[GuestRun], most_ns: float) -> list[GuestRun]:
        """Let time pass until something has to be done, ``most_ns`` at most; return who ended a window."""
        running = [guest for guest in active if self.pause[guest.spec.name] == 0.0]
        resting = {guest.spec.name: self.pause[guest.spec.name] for guest in active if guest not in running}
        marks = [*resting.values(), most_ns] + ([self.clock.next_wake_ns - self.now] if self.watched else [])
        marks += [self.kernel.next_wake_ns - self.now] if self.kernel else []
        if not running:
            self._advance(resting, max(min(marks), 0.0))
            return []
        load = self._load(running)
        speeds = [rate / guest.accesses for rate, guest in zip(load.rates, running, strict=True)]
        ends = [self.left[guest.spec.name] / speed for guest, speed in zip(running, speeds, strict=True)]
        span = max(min([*ends, *marks]), 0.0)
        total = np.sum([g.traffic * speed for g, speed in zip(running, speeds, strict=True)], axis=0) * span
        self.meter.add(total, load, span)
        for guest, speed in zip(running, speeds, strict=True):
            self.left[guest.spec.name] -= speed * span
            self._show(guest, speed * span, span)
            self.done[guest.spec.name].add(guest, speed * span, span)
        self._advance(resting, span)
        return [guest for guest, end in zip(running, ends, strict=True) if end <= span * (1 + 1e-12)]

    def _load(self, running: list[GuestRun]) -> Load:
        """Solve the memory system for these guests, but once only as long as nothing else is asked.

        Guests rest in turn, and the same few of them run together again and again.
        """
        traffics = [guest.traffic for guest in running]
        # A matrix that is kept here stays what it is, and its identity with it.
        key = tuple((id(guest.traffic), guest.parallelism, guest.think_ns) for guest in running)
        if key not in self.solutions:
            if len(self.solutions) >= MOST_SOLUTIONS:
                self.solutions.clear()
            asked = demand(tuple(guest.speed_evidence() for guest in running), traffics)
            self.solutions[key] = traffics, solved(self.host.system, asked)
        return self.solutions[key][1]

    def _show(self, guest: GuestRun, share: float, span: float) -> None:
        if self.recorded:
            self._keep(self.shown[guest.spec.name], guest, share, span)
        if self.kernel:
            self._keep(self.kernel.shown.setdefault(guest.spec.name, []), guest, share, span)

    def _keep(self, parts: list[Part], guest: GuestRun, share: float, span: float) -> None:
        before = parts.pop() if parts and parts[-1].truth is guest.truth else Part(guest.truth, 0.0, 0.0)
        vcpu_ns = before.vcpu_ns + guest.parallelism * span
        parts.append(Part(guest.truth, before.share + share, before.span_ns + span, vcpu_ns))

    def _advance(self, resting: dict[str, float], span: float) -> None:
        self.now += span
        for name, pause in resting.items():
            # What is below a picosecond is rounding: a guest that rests for it would end no window.
            self.pause[name] = pause - span if pause - span > 1e-3 else 0.0

    def _wake(self, active: list[GuestRun]) -> None:
        """Read the counters; look and plan if there may be something new."""
        load = self._load(active)
        counters = [counters_now(guest, load, index) for index, guest in enumerate(active)]
        due = self.clock.wake(self.now, [(c.accesses, c.latency_ns) for c in counters])
        if not (due or self.policy.every_wake):
            return
        span = self.now - self.looked_at
        for guest in active:
            name = guest.spec.name
            if parts := self.shown[name]:
                look = Look(parts, guest.learnt.shown)
                seen = looked(self.source, look, self.chance)
                held_up_ns = seen.held_up_ns(guest.parallelism, self.costs.flush_ns)
                self.pause[name] += held_up_ns * getattr(self.planner, "watch_share", 1.0)
                guest.learnt.absorb(seen, span)
                if self.policy.wants_sharing:
                    guest.learnt.share(guest.sharing())
            self.shown[name] = []
        self.looked_at = self.now
        decision = self.planner.plan(self._view(active, counters, self.policy.wants_estimates))
        changed = self._carry_out(active, decision)
        self.clock.looked(changed)

    def _balance(self, kernel: KernelBalancing, active: list[GuestRun]) -> None:
        """Let the kernel move what faulted twice on a node, if its balancing is on."""
        kernel.next_wake_ns = self.now + WAKE_NS
        seen = kernel.look(active, self.now)
        if kernel.is_on():
            for guest in active:
                if guest.spec.name in seen:
                    held_up_ns = seen[guest.spec.name].held_up_ns(guest.parallelism, self.costs.flush_ns)
                    self.pause[guest.spec.name] += held_up_ns * kernel.planner.watch_share
            self._carry_out(active, kernel.planner.plan(self._view(active, None, estimated=False)))

    def _carry_out(self, active: list[GuestRun], decision: HostPlacement) -> bool:
        if decision.vcpu_node:
            for guest, nodes in zip(active, decision.vcpu_node, strict=True):
                if nodes is not None and (nodes != guest.vcpu_node).any():
                    self.pause[guest.spec.name] += self.costs.vcpu_move_ns
                    guest.run_on(nodes)
                    guest.tie_to(nodes)
            # Threads that float make room for those that were tied, as in agent_threads.py.
            self.schedule()
        before = sum(guest.counts.moved + guest.counts.replicated for guest in active)
        for guest, plan in zip(active, decision.pages, strict=True):
            self._apply(guest, plan)
        return sum(guest.counts.moved + guest.counts.replicated for guest in active) > before

    def _end_window(self, guest: GuestRun) -> bool:
        """Begin the next window; False if it was the guest's last."""
        if not guest.advance():
            guest.put(np.arange(len(guest.node)), ABSENT)
            return False
        self.left[guest.spec.name] = 1.0
        self._begin_window(guest)
        return True

    def _begin_window(self, guest: GuestRun) -> None:
        self._place_fresh(guest)
        self.collapse(guest)

    def collapse(self, guest: GuestRun) -> None:
        collapsed = guest.collapse()
        self.pause[guest.spec.name] += collapsed * self.costs.collapse_ns / max(guest.parallelism, 1.0)

    def _place_fresh(self, guest: GuestRun) -> None:
        fresh = guest.fresh
        guest.put(fresh, guest.first_touch_nodes(fresh))
        if self.policy.reach is Reach.NEW:
            guest.put(fresh, self.planner.plan(self._view([guest], None)).pages[0][fresh])
        for index in np.flatnonzero(self.free_pages() < 0):
            self._spill(guest, fresh, int(index))

    def _spill(self, guest: GuestRun, fresh: Indexes, full: int) -> None:
        """Put the latest of the new pages that a node has no room for on the nearest ones that have."""
        system = self.host.system
        for target in np.argsort(system.latency[full] + 1e9 * (system.controller == 0), kind="stable"):
            free = self.free_pages()
            over, room = (int(max(pages, 0)) for pages in (-free[full], free[target]))
            over, room = -(-over // guest.unit_pages), room // guest.unit_pages
            here = fresh[guest.node[fresh] == full]
            guest.put(here[max(len(here) - min(over, room), 0) :], int(target))
        if self.free_pages()[full] < 0:
            raise VmplaceError(
                f"host {self.host.name} has too little memory for the guests",
                hint="simulate fewer guests, or give its nodes more memory_mib",
            )

    def free_pages(self) -> Matrix:
        """Return the 4 KiB pages that each node has left; below zero what is too much."""
        free = self.host.capacity_pages.copy()
        for guest in self.guests:
            by_place = np.bincount(guest.node.astype(np.intp) + 2, minlength=len(free) + 2) * guest.unit_pages
            free = free - by_place[2:] - guest.copy_nodes(self.host.system) * by_place[0]
        return free

    def _apply(self, guest: GuestRun, plan: NodeIndexes) -> None:
        """Move and copy pages as planned, as far as there is room, and let the guest pay for it."""
        wanted = (plan != guest.node) & (guest.node != ABSENT) & (plan != ABSENT)
        copy_nodes = guest.copy_nodes(self.host.system)
        size, written, parallelism = guest.unit_pages, 0, max(guest.parallelism, 1.0)
        for target in np.unique(plan[wanted]):
            pages = np.flatnonzero(wanted & (plan == target))
            free = self.free_pages()
            room = int(free[copy_nodes].min() if target == REPLICATED else free[target])
            kept = pages[: max(room, 0) // size]
            guest.counts.refused += (len(pages) - len(kept)) * size
            # Giving up copies needs no copying, but for a page that goes to a node without one.
            copies = max(int(copy_nodes.sum()) - 1, 1) if target == REPLICATED else 1
            guest.put(kept, int(target))
            guest.learnt.moved(kept)
            guest.counts.replicated += len(kept) * copies * size if target == REPLICATED else 0
            guest.counts.moved += len(kept) * size if target != REPLICATED else 0
            written += len(kept) * copies
        # A page that the present window writes to does not keep its copies, whenever the write comes.
        self.collapse(guest)
        batches = -(-written * size // HUGE_PAGES)
        self.pause[guest.spec.name] += (
            written * self.costs.unit_ns(size) / parallelism + batches * self.costs.flush_ns
        )

    def _view(
        self, active: list[GuestRun], counters: list[Counters] | None, estimated: bool = True
    ) -> HostView:
        reported: Sequence[Counters | None] = counters or [None] * len(active)
        return HostView(
            self.host.system,
            self.host.capacity_pages,
            tuple(guest.evidence(one, estimated) for guest, one in zip(active, reported, strict=True)),
            self.costs.move_ns,
            self.costs.flush_ns / HUGE_PAGES,
            self.now,
            self.host.cpus,
            self.costs.collapse_ns,
        )
