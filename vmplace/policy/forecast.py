"""What does the model expect of the plan for each guest, and of the ways that it does not take?

1. The memory system is solved with all guests' pages where the plan puts them: what the others then ask of
   controllers and links then stays as it is, whichever way one guest goes.
2. Ways: all stays; what is planned; what the descent wanted before guard, room and budget cut it; all on one
   node, the best of them; copies of all that nobody writes.
3. What a way saves is the guest's accesses times what each takes less, in the time that the plan looks ahead.
   Its price is that of the plan: how long its pages hold up the guest.

Sizes and traffic of the last two are of at most about ``SAMPLED_PAGES`` entries, which stand for all.
Limits: a node may be full; the plan looks at pages, and at all guests' time together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vmplace.model.memory_system import Demand, beside, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import (
    REPLICATED,
    GuestEvidence,
    HostPlacement,
    HostView,
    NodeIndexes,
    row_sums,
    traffic,
)
from vmplace.policy.options import COPIES, NODE, PLANNED, STAY, WANTED, Option, Weighing
from vmplace.topology.guest import PAGE_BYTES

SAMPLED_PAGES = 1 << 14
"""Of all guests together, each the same part: of small ones all are taken."""
UNSEEN = "what it gains: no access of it was seen"
UNCOUNTED = "the share of its time: nothing counts its accesses, so the effect is at least this"
CUT = "beyond what it may stake for now, or this plan's room or budget"
NOTHING = "saves nothing"
DEAR = "its price is more than it saves"
LESS = "saves less in the end"
JOINT = "not known: all guests' time counts together, and how earlier moves turned out"


class _Way(NamedTuple):
    """A way of guest ``number``: the traffic [N, N] that it means, and how many pages it changes, and how."""

    number: int
    name: str
    traffic: Matrix
    moved: float = 0.0
    copied: float = 0.0
    dropped: float = 0.0
    node: int | None = None
    priced: float | None = None
    """As how many pages of the guest's mean price they are; None: as they are."""

    @property
    def pages(self) -> float:
        return self.moved + self.copied + self.dropped

    @property
    def price(self) -> float:
        """Return the price in pages of the guest's mean price."""
        return self.pages if self.priced is None else self.priced


@dataclass(frozen=True)
class _Sample:
    """Of each guest, by its pages that were touched: ``held[G, 2 + N]``, how many have copies, are absent,
    lie on each node; ``free[G]``, how many may have copies, and what they are asked, ``asked[G, N, N]``."""

    held: Matrix
    free: Matrix
    asked: Matrix


def weighings(
    view: HostView,
    now: Sequence[Matrix],
    decision: HostPlacement,
    real_ns: float,
    ahead_s: Sequence[float | None],
) -> tuple[Weighing, ...]:
    """Return what was weighed for each guest; ``now``: its traffic, ``real_ns``: what a ns of the plan is.

    ``ahead_s``: for how long what was seen of each is expected to go on, None where nothing counts it.
    """
    wanted = decision.wanted or decision.pages
    ways, goal = [], list(now)
    for number, (places, all_of_it) in enumerate(zip(decision.pages, wanted, strict=True)):
        planned = _changed(view, number, PLANNED, now[number], places)
        goal[number] = planned.traffic
        ways += [_Way(number, STAY, now[number])]
        ways += [planned] if planned.pages else []
        if all_of_it is not places and not np.array_equal(all_of_it, places):
            ways.append(_changed(view, number, WANTED, now[number], all_of_it))
    host = _Host.of(view, np.stack(goal), now)
    ways += _other_ways(view, host, now)
    times = host.times(ways)
    by_guest: list[list[tuple[_Way, float]]] = [[] for _ in view.guests]
    for way, time in zip(ways, times, strict=True):
        by_guest[way.number].append((way, time))
    return tuple(
        _weighing(guest, some, view.mean_pause_ns(guest) * real_ns, real_ns, ahead, view.system.nids)
        for guest, some, ahead in zip(view.guests, by_guest, ahead_s, strict=True)
    )


def _changed(view: HostView, number: int, name: str, now: Matrix, places: NodeIndexes) -> _Way:
    """Return the way of pages of guest ``number`` to ``places``, at the price of these pages."""
    guest = view.guests[number]
    pages = (places != guest.node).nonzero()[0]
    if not len(pages):
        return _Way(number, name, now)
    here, there, sizes = guest.node[pages], places[pages], guest.sizes_of(pages)
    if len(pages) > len(places) // 4:
        # To pick that many takes longer than to go through all.
        then = traffic(guest.heat, places)
    else:
        heat = guest.heat.take(pages, axis=0)
        then = np.maximum(now + traffic(heat, there) - traffic(heat, here), 0.0)
    kind = 2 * (there == REPLICATED) + (here == REPLICATED)
    moved, dropped, copied = np.bincount(kind, sizes, 3).tolist()
    each = np.where(there == REPLICATED, guest.copies, 1) * view.worth(guest, pages)
    priced = float(each.sum()) * view.pause_ns(guest) / max(view.mean_pause_ns(guest), 1e-300)
    return _Way(number, name, then, moved, copied * guest.copies, dropped, priced=priced)


def _other_ways(view: HostView, host: "_Host", now: Sequence[Matrix]) -> Iterator[_Way]:
    """Yield the ways that are no plan: all on the best node, and copies."""
    sample, seen = _sample(view), np.stack(now)
    heat, nodes = seen.sum(axis=2), len(view.system.nids)
    moved = sample.held[:, 2:].sum(axis=1, keepdims=True) - sample.held[:, 2:]
    best = host.best_nodes(heat, moved)
    for number, index in enumerate(best.tolist()):
        if moved[number, index] or sample.held[number, 0]:
            then = np.zeros((nodes, nodes))
            then[:, index] = heat[number]
            away, dropped = float(moved[number, index]), float(sample.held[number, 0])
            yield _Way(number, NODE, then, away, dropped=dropped, node=index)
    for number in np.flatnonzero(sample.free).tolist():
        then = np.maximum(seen[number] - sample.asked[number], 0.0) + np.diag(
            sample.asked[number].sum(axis=1)
        )
        yield _Way(number, COPIES, then, copied=float(sample.free[number]) * view.guests[number].copies)


def _sample(view: HostView) -> _Sample:
    """Return the guests' pages, summed up from entries that are taken evenly."""
    guests, nodes = view.guests, len(view.system.nids)
    most = max(SAMPLED_PAGES // len(guests), 1)
    steps = [max(-(-len(guest.node) // most), 1) for guest in guests]
    parts = [(guest, slice(step // 2, None, step)) for guest, step in zip(guests, steps, strict=True)]
    counts = [len(guest.node[some]) for guest, some in parts]
    number, every = np.repeat(np.arange(len(guests)), counts), np.repeat(np.array(steps, float), counts)
    node = np.concatenate([guest.node[some] for guest, some in parts]).astype(np.intp)
    heat = np.concatenate([guest.heat[some] for guest, some in parts])
    sizes = np.concatenate(
        [
            np.ones(count) if guest.sizes is None else guest.sizes[some]
            for (guest, some), count in zip(parts, counts, strict=True)
        ]
    )
    sizes = np.where(row_sums(heat) > 0, sizes * every, 0.0)
    held = np.bincount(number * (nodes + 2) + node + 2, sizes, len(guests) * (nodes + 2))
    may = np.repeat([guest.may_copy(view.system) for guest in guests], counts)
    free = np.flatnonzero(may & (node >= 0) & ~np.concatenate([guest.written[some] for guest, some in parts]))
    at = number[free] * nodes + node[free]
    asked = [np.bincount(at, heat[free, k] * every[free], len(guests) * nodes) for k in range(nodes)]
    return _Sample(
        held.reshape(len(guests), nodes + 2).astype(np.float64),
        np.bincount(number[free], sizes[free], len(guests)).astype(np.float64),
        np.stack(asked).reshape(nodes, len(guests), nodes).transpose(1, 0, 2).astype(np.float64),
    )


@dataclass(frozen=True)
class _Host:
    """The host with the plan done: rates [G, R] that each guest asks of each resource."""

    view: HostView
    needs: Demand
    asked: Matrix

    @classmethod
    def of(cls, view: HostView, goal: Matrix, now: Sequence[Matrix]) -> "_Host":
        """Return the host with the guests' traffic at ``goal``; ``now`` it is near to that."""
        system, guests, pairs = view.system, view.guests, len(view.system.nids) ** 2
        figures = np.array([(guest.parallelism, guest.think_ns, guest.mlp) for guest in guests])
        needs = Demand(_shares(goal), *figures.T)
        uses = needs.shares.reshape(-1, pairs) @ system.visits.reshape(pairs, -1)
        return cls(view, needs, uses * solved(system, needs).rates[:, None])

    def best_nodes(self, heat: Matrix, moved: Matrix) -> npt.NDArray[np.intp]:
        """Return the node that each guest's memory would best be on as a whole, at the waits of the plan."""
        system, needs = self.view.system, self.needs
        latency = system.latency + system.visits @ system.waits(self.asked.sum(axis=0))
        pause = np.array([self.view.mean_pause_ns(guest) for guest in self.view.guests])
        costs = (heat @ latency) / (needs.mlp * needs.parallelism)[:, None] + moved * pause[:, None]
        holds = np.stack([guest.holds(system) for guest in self.view.guests])
        best: npt.NDArray[np.intp] = np.where(holds, costs, np.inf).argmin(axis=1)
        return best

    def times(self, ways: Sequence[_Way]) -> list[float]:
        """Return what an access takes on each way, work in between included, the others as planned."""
        number = np.array([way.number for way in ways])
        needs = Demand(
            _shares(np.stack([way.traffic for way in ways])),
            self.needs.parallelism[number],
            self.needs.think[number],
            self.needs.mlp[number],
        )
        others = np.maximum(self.asked.sum(axis=0) - self.asked, 0.0)[number]
        times: list[float] = (1 / beside(self.view.system, needs, others)).tolist()
        return times


def _shares(traffics: Matrix) -> Matrix:
    shares: Matrix = traffics / np.maximum(traffics.sum(axis=(1, 2), keepdims=True), 1e-300)
    return shares


def _weighing(  # noqa: PLR0913 - a guest, and all its figures refer to
    guest: GuestEvidence,
    ways: list[tuple[_Way, float]],
    pause_ns: float,
    real_ns: float,
    ahead_s: float | None,
    nids: tuple[int, ...],
) -> Weighing:
    (stay, now), *_ = ways
    accesses_ns = float(stay.traffic.sum()) * real_ns
    if accesses_ns <= 0:
        return Weighing(guest.name, unknown=UNSEEN)
    net = {way.name: accesses_ns * (now - time) - way.price * pause_ns for way, time in ways}
    chosen, first = net.get(PLANNED, 0.0), int(PLANNED in net)
    options = [
        Option(
            way.name,
            round(way.moved) * PAGE_BYTES,
            round(way.copied) * PAGE_BYTES,
            round(way.dropped) * PAGE_BYTES,
            way.price * pause_ns,
            accesses_ns * (now - time),
            None if ahead_s is None else 1 - time / now,
            "" if at == first else _why_not(way.name, now - time, net[way.name], chosen),
            None if way.node is None else nids[way.node],
        )
        for at, (way, time) in enumerate(ways)
    ]
    unknown = UNCOUNTED if ahead_s is None else ""
    others = (*options[:first], *options[first + 1 :])
    return Weighing(guest.name, options[first], others, ahead_s, unknown)


def _why_not(name: str, saved: float, net: float, chosen: float) -> str:
    if name == WANTED:
        return CUT
    if net > chosen:
        return JOINT
    if saved <= 0:
        return NOTHING
    return DEAR if net <= 0 else LESS
