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

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix
from vmplace.policy import guard
from vmplace.policy.as_rounded import worthwhile
from vmplace.policy.descent import PROTECTED_IMPORTANCE, descended
from vmplace.policy.even_spread import evened
from vmplace.policy.host_view import (
    ABSENT,
    REPLICATED,
    GuestEvidence,
    HostPlacement,
    HostView,
    Indexes,
    NodeIndexes,
    Room,
    costs,
    hottest_first,
    row_sums,
)
from vmplace.policy.page_task import PageTask
from vmplace.policy.steadiness import Spans, Steadiness
from vmplace.policy.vcpu_plan import Layout, VcpuPlanner

SETTLED_MOVES = 3
"""After so many plans that moved pages of a guest, those that are shared move for what is worth it alone."""
SMALLEST = 1e-12
"""A price (ns) below this is none."""
SAMPLED_PAGES = 1 << 16
"""The descent looks at about so many pages, evenly taken; the others then go by the prices found."""

Hurdles = tuple[Matrix, Matrix]


@dataclass(frozen=True)
class Wanted:
    """Where each guest's pages ought to be, and the prices [N, N] by (node, place) of its accesses as yet.

    A price is what one more access costs all guests, in units of the guest's own time (ns).  At prices of the
    plan a page that leaves a full controller would gain nothing: it is not full any more then.
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
) -> Wanted:
    """Return each guest's pages where the host's accesses cost the least time, moves included.

    ``hurdles``: by guest, by how much the prices of its moves and copies are multiplied, in all or by page.
    """
    # Pages that nobody touched cost nothing anywhere: left out, they cost no time to decide on, either.
    touched = [np.flatnonzero((guest.node != ABSENT) & (row_sums(guest.heat) > 0)) for guest in view.guests]
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
    return Wanted(_placed(view, touched, worthwhile(view.system, tasks, parts)), prices)


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
        wanted = plan_host(view, lambda name: self._hurdles(name, spans[name]), settled)
        left = view.room
        kept = []
        for guest, plan, prices in zip(view.guests, wanted.plans, wanted.prices, strict=True):
            if guest.name in self.waiting:
                kept.append(guest.node)
                continue
            change = Change(guest, plan, prices)
            places, left = self._guarded(view, change, spans[guest.name], left)
            kept.append(places)
        return HostPlacement(kept, wanted=wanted.plans)

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
        return HostPlacement([guest.node for guest in view.guests], moves)

    def _guarded(
        self, view: HostView, change: "Change", spans: Spans, room: Room | None
    ) -> tuple[NodeIndexes, Room | None]:
        guest = change.guest
        memory = self.memories[guest.name]
        if guard.is_lost(memory, view.now_ns, guest.slowdown_bound):
            here = (guest.node != ABSENT) & (memory.origin != ABSENT)
            home = np.where(here, memory.origin, guest.node).astype(np.int8)
            self.memories[guest.name] = guard.given_up(memory, view.now_ns)
            return home, room
        rise = guard.measured_rise(memory, guest)
        if rise is not None and rise < -guard.MEASURED_RISE:
            memory = self.memories[guest.name] = guard.trusted(memory)
        if rise is not None and rise > guard.MEASURED_RISE and memory.promise is not None:
            undone = guest.node.copy()
            pages = memory.promise.pages
            back = memory.promise.before[guest.node[pages] != ABSENT]
            undone[pages[guest.node[pages] != ABSENT]] = back
            self.memories[guest.name] = guard.left_alone(memory, view.now_ns)
            return undone, room
        change = change.to(_affordable(view, change, memory))
        kept, room = _fitting(change, room)
        self.memories[guest.name] = _noted(view, guest, kept, memory, spans)
        return kept, room


@dataclass(frozen=True)
class Change:
    """A guest's pages, where they ought to be, and what its accesses cost as yet (``Wanted``)."""

    guest: GuestEvidence
    plan: NodeIndexes
    prices: Matrix

    @property
    def pages(self) -> Indexes:
        """Return the pages that are to be elsewhere."""
        return np.flatnonzero(self.plan != self.guest.node)

    def to(self, plan: NodeIndexes) -> "Change":
        """Return the change to other places."""
        return replace(self, plan=plan)

    def best_first(self, pages: Indexes, prices: Matrix) -> Indexes:
        """Return the order of ``pages`` by what all gain for each of ``prices``, of like ones by heat."""
        guest, heat = self.guest, self.guest.heat.take(pages, axis=0)
        order = hottest_first(row_sums(heat) / guest.sizes_of(pages))
        saved = costs(heat, guest.node[pages], self.prices) - costs(heat, self.plan[pages], self.prices)
        worth = np.maximum(saved, 0.0) / np.maximum(prices, SMALLEST)
        return order[hottest_first(worth[order])]


def _affordable(view: HostView, change: Change, memory: guard.Memory) -> NodeIndexes:
    """Return the changes that gain most for what is staked, way back included, as far as the budget goes."""
    guest, plan = change.guest, change.plan
    budget_ns = memory.budget_ns(view.now_ns, guest.slowdown_bound)
    changed = change.pages
    stakes = _stakes_ns(view, guest, changed, plan, memory)
    if float(stakes.sum()) <= budget_ns:
        return plan
    kept, free = guest.node.copy(), stakes <= 0
    kept[changed[free]] = plan[changed[free]]
    paid, stakes = changed[~free], stakes[~free]
    order = change.best_first(paid, stakes)
    chosen = paid[order[: int(np.searchsorted(np.cumsum(stakes[order]), budget_ns, side="right"))]]
    kept[chosen] = plan[chosen]
    return kept


def _fitting(change: Change, room: Room | None) -> tuple[NodeIndexes, Room | None]:
    """Return the changes that gain most for their size, as far as there is room, and the room left then."""
    guest, plan, changed = change.guest, change.plan, change.pages
    if room is None or not len(changed):
        return plan, room
    kept, free, copies, churn = guest.node.copy(), room.free.copy(), room.copies.copy(), room.churn
    order = changed[change.best_first(changed, guest.sizes_of(changed))]
    sizes = guest.sizes_of(order)
    for target in np.unique(plan[order]).tolist():
        mine = plan[order] == target
        upto = np.cumsum(sizes[mine])
        if target == REPLICATED:
            near = guest.worker
            times = max(int(near.sum()) - 1, 1)
            fits = (upto <= float(copies[near].min(initial=np.inf))) & (upto * times <= churn)
            used = float(upto[fits][-1]) if fits.any() else 0.0
            copies[near] -= used
            free[near] -= used
            churn -= used * times
        else:
            fits = (upto <= free[target]) & (upto <= churn)
            used = float(upto[fits][-1]) if fits.any() else 0.0
            free[target] -= used
            churn -= used
        chosen = order[mine][fits]
        kept[chosen] = plan[chosen]
    return kept, Room(churn, free, copies)


def _copies(guest: GuestEvidence, places: NodeIndexes) -> npt.NDArray[np.float64]:
    return np.where(places == REPLICATED, guest.copies, 1).astype(np.float64)


def _stakes_ns(
    view: HostView, guest: GuestEvidence, pages: Indexes, plan: NodeIndexes, memory: guard.Memory
) -> npt.NDArray[np.float64]:
    """Return what is staked on each of ``pages`` by the plan: the price, and what the way back takes.

    That is the price of dropping copies, or of another move.  It is staked when a page leaves where it was
    before anything was done, and is there to be spent when it goes back.
    """
    here, there, origin = guest.node[pages], plan[pages], memory.origin[pages]
    pause = view.pause_ns(guest) * view.worth(guest, pages)
    drop = view.collapse_ns / max(guest.parallelism, 1.0) * guest.unmapped(pages)
    back = np.where(there == REPLICATED, drop, pause)
    leaves, returns = (origin == here) | (origin == ABSENT), origin == there
    price = _copies(guest, there) * pause
    return np.where(returns, 0.0, price + np.where(leaves | (there == REPLICATED), back, 0.0))


def _noted(
    view: HostView, guest: GuestEvidence, plan: NodeIndexes, memory: guard.Memory, spans: Spans
) -> guard.Memory:
    """Return the memory with the plan as a trial, and what it promises.

    A trial answers for the part of a price that is due within one span: it is over by then.
    """
    pages: Indexes = np.flatnonzero(plan != guest.node)
    if not len(pages):
        return replace(memory, promise=None)
    trials, spent = memory.trials, memory.spent_ns
    for copies in (False, True):
        some = pages[(plan[pages] == REPLICATED) == copies]
        costs = _copies(guest, plan[some]) * view.pause_ns(guest) * view.worth(guest, some)
        if len(some):
            before, after = guest.node[some].copy(), plan[some].copy()
            due = float((costs / spans.of(copies=copies)[some]).sum())
            trials = guard.with_trial(trials, guard.PastMove(some, before, after, due, view.now_ns, copies))
            spent += float(_stakes_ns(view, guest, some, plan, memory).sum())
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
