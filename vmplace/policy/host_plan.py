"""Where ought the pages of all guests lie, together?  vmplace's own answer for hosts that see nodes.

1. A page that no write was seen to may be replicated, if every node of its guest's vCPUs has memory.
   A source that may miss writes must show a guest that hardly writes at all.
2. What was seen of a page since its last move is expected once more, and several times if its pattern is that
   old (``steadiness.py``): a move must pay for itself within that, so no more is ever staked than was already
   seen to be lost.
3. Pages of all guests go to where the whole host's accesses cost least time (``descent``): controllers
   and links are shared, so a page's best node depends on everybody's pages.  The time of a protected
   guest counts several times.
4. The guard (``guard.py``) sets the hurdle and the budget of each guest, and undoes what did harm.

Source: BWAP (IPDPS'20), section III, is the case of one guest with pages that all nodes share alike;
the replicas are Carrefour's (ASPLOS'13, section 3.2), per page instead of per application.
A moved page earns its next move anew (kMAF, PACT'14, halves its vector).
Limits: a phase that ends as soon as it was seen is lost to any policy that looks back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix
from vmplace.policy import guard
from vmplace.policy.affordable import Change, affordable, copies_of, fitting, stakes_ns
from vmplace.policy.as_rounded import worthwhile
from vmplace.policy.descent import PROTECTED_IMPORTANCE, descended
from vmplace.policy.even_spread import evened
from vmplace.policy.held_back import WAITS, held_back
from vmplace.policy.host_view import (
    ABSENT,
    REPLICATED,
    GuestEvidence,
    HostPlacement,
    HostView,
    Indexes,
    NodeIndexes,
    Room,
    row_sums,
)
from vmplace.policy.move_gains import PastMove, with_trial
from vmplace.policy.page_task import PageTask
from vmplace.policy.steadiness import Spans, Steadiness
from vmplace.policy.vcpu_plan import Layout, VcpuPlanner

SETTLED_MOVES = 3
"""After so many plans that moved pages of a guest, those that are shared move for what is worth it alone."""
SAMPLED_PAGES = 1 << 16
"""The descent looks at about so many pages, evenly taken; the others then go by the prices found."""

Hurdles = tuple[Matrix, Matrix]


@dataclass(frozen=True)
class Wanted:
    """Where each guest's pages ought to be, and the prices [N, N] by (node, place) of its accesses as yet.

    A price is what one more access costs all guests, in units of the guest's own time (ns).
    """

    plans: list[NodeIndexes]
    prices: list[Matrix]


def no_hurdles(_: str) -> Hurdles:
    """Return the hurdles of a guest that has none."""
    return np.ones(1), np.ones(1)


def plan_host(
    view: HostView,
    hurdles: Callable[[str], Hurdles] = no_hurdles,
    settled: frozenset[str] = frozenset(),
    origins: Sequence[NodeIndexes] | None = None,
) -> Wanted:
    """Return each guest's pages where the host's accesses cost the least time, moves included.

    ``hurdles``: by guest, by how much the prices of its moves and copies are multiplied, in all or by page.
    ``origins``: where each guest's pages were before anything was done.
    """
    # Pages that nobody touched cost nothing anywhere: left out, they cost no time to decide on, either.
    touched = [(guest.present & (row_sums(guest.heat) > 0)).nonzero()[0] for guest in view.guests]
    tasks = [
        _task(view, guest, pages, hurdles(guest.name))
        for guest, pages in zip(view.guests, touched, strict=True)
    ]
    mixture = descended(view.system, _thinned(tasks))
    distributed = [mixture.distributed(view.system, task, number) for number, task in enumerate(tasks)]
    plans = evened(
        view.system,
        view.guests,
        _placed(view, touched, distributed),
        [_has_to_span(view, guest) for guest in view.guests],
        [guest.name in settled for guest in view.guests],
    )
    parts = [plan[pages] for plan, pages in zip(plans, touched, strict=True)]
    prices = [mixture.prices(number) for number in range(len(tasks))]
    first = None if origins is None else [one[pages] for one, pages in zip(origins, touched, strict=True)]
    return Wanted(_placed(view, touched, worthwhile(view.system, tasks, parts, first)), prices)


def _placed(view: HostView, touched: list[Indexes], parts: list[NodeIndexes]) -> list[NodeIndexes]:
    """Return each guest's pages, those that were touched at their places."""
    plans = [guest.node.copy() for guest in view.guests]
    for plan, pages, places in zip(plans, touched, parts, strict=True):
        plan[pages] = places
    return plans


def _has_to_span(view: HostView, guest: GuestEvidence) -> bool:
    """Tell whether the guest's vCPUs are too many for one node: others may be gathered beside their pages."""
    if view.cpus is None or guest.vcpu_node is None or guest.may_tie is None:
        return True
    return len(guest.vcpu_node) > float(view.cpus.max())


def _thinned(tasks: list[PageTask]) -> list[PageTask]:
    """Return the tasks of at most about SAMPLED_PAGES pages, which stand for all: prices need no more."""
    every = -(-sum(len(task.guest.node) for task in tasks) // SAMPLED_PAGES)
    some = slice(every // 2, None, every)
    return tasks if every < 2 else [task.thinned(some, float(every)) for task in tasks]


@dataclass
class HostPlanner:
    """The plan for the host, guarded by what became of the plans before."""

    memories: dict[str, guard.Memory] = field(default_factory=dict)
    vcpus: VcpuPlanner = field(default_factory=VcpuPlanner)
    steady: dict[str, Steadiness] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()
    """Guests whose pages stay for now: their vCPUs are about to move."""

    def plan(self, view: HostView) -> HostPlacement:
        """Return where all guests' pages ought to be, or where their vCPUs ought to be first."""
        self.memories |= guard.remembered(self.memories, view)
        self.steady = {guest.name: self._watched(guest, view.now_ns) for guest in view.guests}
        layout = self.vcpus.plan(view)
        if layout is not None:
            return self._moved(view, layout)
        spans = {name: one.spans(view.now_ns) for name, one in self.steady.items()}
        settled = frozenset(name for name, one in self.memories.items() if one.moves >= SETTLED_MOVES)
        # They are those of all pages, so they are asked for only where a bound depends on them.
        has_bound = any(guest.slowdown_bound is not None for guest in view.guests)
        origins = [_origins(one, self.memories[one.name]) for one in view.guests] if has_bound else None
        wanted = plan_host(view, lambda name: self._hurdles(name, spans[name]), settled, origins)
        left = view.room
        kept, why = [], dict[str, str]()
        for guest, plan, prices in zip(view.guests, wanted.plans, wanted.prices, strict=True):
            if guest.name in self.waiting:
                kept.append(guest.node)
                why[guest.name] = WAITS
                continue
            change, memory = Change(guest, guest.unbarred(plan), prices), self.memories[guest.name]
            paid = change.to(affordable(view, change, memory))
            places, left = self._guarded(view, paid, spans[guest.name], left)
            kept.append(places)
            why[guest.name] = held_back(view, change, memory, paid.plan, places)
        return HostPlacement(kept, wanted=wanted.plans, room=left, why=why)

    def _watched(self, guest: GuestEvidence, now_ns: float) -> Steadiness:
        before = self.steady.get(guest.name)
        if before is None:
            # Who uses a page now has done so for as long as the guest is known.
            return Steadiness.unknown(len(guest.node)).seen(guest, now_ns - guest.known_ns)
        return before.seen(guest, now_ns)

    def _hurdles(self, name: str, spans: Spans) -> Hurdles:
        """Return the guard's hurdles, by page: lower where what was seen is expected to go on."""
        memory = self.memories[name]
        return memory.hurdle(copies=False) / spans.moves, memory.hurdle(copies=True) / spans.copies

    def _moved(self, view: HostView, layout: Layout) -> HostPlacement:
        """Return the decision to move vCPUs; pages follow at the next look, which sees them from there."""
        moves: list[Indexes | None] = []
        for guest, nodes in zip(view.guests, layout, strict=True):
            changed = guest.vcpu_node is not None and bool((guest.vcpu_node != nodes).any())
            moves.append(nodes if changed else None)
            if changed:
                self.memories[guest.name] = guard.resettled(self.memories[guest.name], guest)
        return HostPlacement([guest.node for guest in view.guests], moves, room=view.room)

    def _guarded(
        self, view: HostView, paid: Change, spans: Spans, room: Room | None
    ) -> tuple[NodeIndexes, Room | None]:
        """Return where the pages of a guest ought to be now, and the room that is left for the others."""
        guest = paid.guest
        places, memory, left = _allowed(view, paid, self.memories[guest.name], spans, room)
        if not guest.may_change:
            # Nobody does it: it stakes nothing, and takes no room.
            return places, room
        self.memories[guest.name] = memory
        return places, left


def _allowed(
    view: HostView, paid: Change, memory: guard.Memory, spans: Spans, room: Room | None
) -> tuple[NodeIndexes, guard.Memory, Room | None]:
    """Return what the guard lets a guest have of its change, what it remembers of that, and the room left.

    ``paid``: the part of the change that its budget pays for.
    """
    guest = paid.guest
    if guard.goes_back(memory, view.now_ns, guest.slowdown_bound):
        home = _origins(guest, memory)
        memory = guard.on_its_way(memory, view.now_ns, _npages_away(guest, home))
        if memory.returning is not None:
            # Copies are dropped without room.
            moves, room = fitting(paid.to(np.where(guest.node == REPLICATED, guest.node, home)), room)
            return np.where(guest.node == REPLICATED, home, moves).astype(np.int8), memory, room
    rise = guard.measured_rise(memory, guest)
    if rise is not None and rise < -guard.MEASURED_RISE:
        memory = guard.trusted(memory)
    if rise is not None and rise > guard.MEASURED_RISE and memory.promise is not None:
        undone = guest.node.copy()
        pages = memory.promise.pages
        back = memory.promise.before[guest.node[pages] != ABSENT]
        undone[pages[guest.node[pages] != ABSENT]] = back
        return undone, guard.left_alone(memory, view.now_ns), room
    kept, room = fitting(paid, room)
    return kept, _noted(view, guest, kept, memory, spans), room


def _origins(guest: GuestEvidence, memory: guard.Memory) -> NodeIndexes:
    """Return where the guest's pages were before anything was done."""
    here = (guest.node != ABSENT) & (memory.origin != ABSENT)
    return np.where(here, memory.origin, guest.node).astype(np.int8)


def _npages_away(guest: GuestEvidence, home: NodeIndexes) -> float:
    return float(guest.sizes_of(np.flatnonzero(home != guest.node)).sum())


def _noted(
    view: HostView, guest: GuestEvidence, plan: NodeIndexes, memory: guard.Memory, spans: Spans
) -> guard.Memory:
    """Return the memory with the plan as a trial, and what it promises.

    A trial answers for the part of a price that is due within one span: it is over by then.
    """
    pages = (plan != guest.node).nonzero()[0]
    if not len(pages):
        return memory if memory.promise is None else replace(memory, promise=None)
    trials, spent = memory.trials, memory.spent_ns
    for copies in (False, True):
        some = pages[(plan[pages] == REPLICATED) == copies]
        costs = copies_of(guest, plan[some]) * view.pause_ns(guest) * view.worth(guest, some)
        if len(some):
            before, after = guest.node[some].copy(), plan[some].copy()
            due = float((costs / spans.of(copies=copies)[some]).sum())
            trials = with_trial(trials, PastMove(some, before, after, due, view.now_ns, copies))
            spent += float(stakes_ns(view, guest, some, plan, memory).sum())
    promise = None
    if guest.counters is not None:
        promise = guard.Promise(
            pages,
            guest.node[pages].copy(),
            guest.counters.latency_ns,
            guest.think_ns,
            guard.shares_by_node(guest.counters),
        )
    moves = memory.moves + bool((plan[pages] >= 0).any())
    return replace(memory, trials=trials, spent_ns=spent, promise=promise, moves=moves)


def _task(view: HostView, guest: GuestEvidence, pages: npt.NDArray[np.intp], hurdles: Hurdles) -> PageTask:
    part = guest.of_pages(pages)
    # Time of the guest is latency / (mlp x parallelism); the price is in latency per window.
    price = view.worth(guest, pages)
    price *= view.pause_ns(guest) * guest.mlp * guest.parallelism
    if part.windows.max(initial=1) != 1:
        price /= np.maximum(part.windows, 1)
    importance = PROTECTED_IMPORTANCE if guest.slowdown_bound is not None else 1.0
    moves, copies = (price * (one[pages] if len(one) > 1 else one) for one in hurdles)
    moves = moves if part.stays is None else np.where(part.stays, np.inf, moves)
    return PageTask(
        part, ~part.written & np.bool_(guest.may_copy(view.system)), moves, copies, importance, guest.allowed
    )
