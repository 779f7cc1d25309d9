"""Is it worth it to spread shared pages unevenly, or would distributing them evenly do as well?

1. Pages that several nodes use alike have no home: where they lie matters by the waits of others alone.
   Which node has how much room for them follows from all guests' rates, which vary from window to window.
2. So of a plan's moves of such pages those are distributed evenly over the nodes of the guest's vCPUs, beside
   what stays, unless that makes a guest slower than the plan would by more than ``WORTH``.
   Before that, pages without a home that would change nodes with each other stay, by the same measure.
3. Evenly only a guest that no node has CPUs enough for: vCPUs of others are gathered where most pages are.
4. Of a guest that was moved before, shared pages and copies stay where they may as well, by the same measure:
   they follow neither each window's rates nor the chance by which one node alone was seen.
5. Of one whose vCPUs are on one node all pages stay, if that costs nobody ``AS_IS``: how many of them are to
   be away from a full controller follows from all guests' rates, too.

Example: 8 pages of a guest on nodes 0 and 1 lie on node 0; a plan moves all of them to node 1, where it takes
the others to be less busy by a trifle.  Half of them stay.

>>> heat, here, there = np.ones((8, 2)), np.zeros(8, np.int8), np.ones(8, np.int8)
>>> np.bincount(distributed(heat, here, there, np.ones(2, bool))).tolist()
[4, 4]

Source: BWAP (IPDPS'20), section III, begins with the nodes' even shares where no bandwidth tells otherwise.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vmplace.model.memory_system import Demand, MemorySystem, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.descent import rounded, start_of
from vmplace.policy.host_view import (
    REPLICATED,
    Bools,
    GuestEvidence,
    NodeIndexes,
    costs,
    demand,
    hottest_first,
    row_sums,
    traffic,
)

ALIKE = 0.95
"""Of the latency on average over the nodes: a page that is nearer than that to its users has a home."""
WORTH = 0.01
"""The model errs by more than this share of a guest's time."""
AS_IS = 0.003
"""Less than that, as moves that gain little each, from far to near, are not to wait for each other."""

Kind = Callable[[MemorySystem, GuestEvidence, NodeIndexes], tuple[NodeIndexes, ...]]


@dataclass(frozen=True)
class Plans:
    """Where all guests' pages are to be, and what the guests ask of the memory then."""

    system: MemorySystem
    guests: tuple[GuestEvidence, ...]
    places: list[NodeIndexes]
    needs: Demand

    @classmethod
    def of(
        cls, system: MemorySystem, guests: tuple[GuestEvidence, ...], places: list[NodeIndexes]
    ) -> "Plans":
        """Return the plans with what they ask."""
        each = zip(guests, places, strict=True)
        traffics = [traffic(guest.heat, one) for guest, one in each]
        return cls(system, guests, places, demand(guests, traffics))

    def times(self, guess: Matrix | None = None) -> Matrix:
        """Return each guest's time for an access of its vCPUs together; ``guess``: those of other plans."""
        rates = None if guess is None else 1 / guess
        times: Matrix = 1 / solved(self.system, self.needs, rates).rates
        return times

    def with_guest(self, number: int, places: NodeIndexes) -> "Plans":
        """Return the plans with one guest's pages elsewhere."""
        guest, all_places, shares = self.guests[number], [*self.places], self.needs.shares.copy()
        all_places[number] = places
        shares[number] = demand((guest,), [traffic(guest.heat, places)]).shares[0]
        return Plans(self.system, self.guests, all_places, replace(self.needs, shares=shares))


def evened(
    system: MemorySystem,
    guests: Sequence[GuestEvidence],
    places: list[NodeIndexes],
    has_to_span: Sequence[bool],
    settled: Sequence[bool],
) -> list[NodeIndexes]:
    """Return the plans with what is spread distributed evenly where that costs nobody ``WORTH``.

    ``settled``: guests of which shared pages and copies stay, on the same condition.
    """
    plans: Plans | None = None
    times: Matrix | None = None
    for number, guest in enumerate(guests):
        for of, worth in _kinds(guest, has_to_span=has_to_span[number], is_settled=settled[number]):
            others = of(system, guest, places[number] if plans is None else plans.places[number])
            for other in others if settled[number] else others[:1]:
                plans = plans or Plans.of(system, tuple(guests), places)
                times = plans.times() if times is None else times
                tried = plans.with_guest(number, other)
                tried_times = tried.times(times)
                if bool((tried_times <= (1 + worth) * times).all()):
                    # Never later than before: else each guest's change could cost the others WORTH once more.
                    plans, times = tried, np.minimum(times, tried_times)
    return places if plans is None else plans.places


def _kinds(guest: GuestEvidence, *, has_to_span: bool, is_settled: bool) -> Iterator[tuple[Kind, float]]:
    """Yield what else may be tried of a guest's plan, and from which cost on it is not worth it."""
    yield _exchange, WORTH
    if has_to_span:
        yield _others, WORTH
    if is_settled and guest.nodes_of_vcpus == 1:
        yield _as_is, AS_IS


def _exchange(system: MemorySystem, guest: GuestEvidence, plan: NodeIndexes) -> tuple[NodeIndexes, ...]:
    """Return the plan with pages exchanged, if that changes anything."""
    other = exchanged(system, guest, plan)
    return () if other is plan or bool((other == plan).all()) else (other,)


def _others(system: MemorySystem, guest: GuestEvidence, plan: NodeIndexes) -> tuple[NodeIndexes, ...]:
    """Return what may do as well as the plan: shared pages distributed; these and copies as they are.

    Neither where the plan changes none of them.
    """
    if guest.nodes_of_vcpus < 2:
        return ()
    near = guest.worker & guest.holds(system)
    if np.count_nonzero(near) < 2:
        return ()
    # A page with copies that one node was seen to read: were it that node's, it would gain nothing.
    stays = np.where((guest.node == REPLICATED) & (plan >= 0), guest.node, plan)
    even = stays.copy()
    beyond = system.latency - ALIKE * system.latency[:, near].mean(axis=1, keepdims=True)
    some = np.flatnonzero((guest.node >= 0) & (plan >= 0) & (costs(guest.heat, plan, beyond) > 0))
    stays[some] = guest.node[some]
    if not (stays != plan).any():
        return ()
    heat = guest.heat.take(some, axis=0)
    even[some] = distributed(heat, guest.node[some], plan[some], near, start_of(guest.name))
    return even, stays


def _as_is(_: MemorySystem, guest: GuestEvidence, plan: NodeIndexes) -> tuple[NodeIndexes, ...]:
    """Return the plan with all pages where they are, but for copies, if that changes anything."""
    stays = np.where((guest.node >= 0) & (plan >= 0), guest.node, plan)
    return (stays,) if (stays != plan).any() else ()


def distributed(
    heat: Matrix, here: NodeIndexes, there: NodeIndexes, near: Bools, start: float = 0.0
) -> NodeIndexes:
    """Return places [P] of shared pages: those that were to move go where the least of them is.

    ``start``: as that of ``descent.rounded``.
    """
    load, stays = row_sums(heat), here == there
    has: Matrix = np.bincount(here[stays], load[stays], len(near)).astype(np.float64)
    lacks = np.where(near, np.maximum(_level(has[near], float(load[~stays].sum())) - has, 0.0), 0.0)
    return _dealt(load, np.ones(len(load)), here, there, lacks, start)


def exchanged(system: MemorySystem, guest: GuestEvidence, plan: NodeIndexes) -> NodeIndexes:
    """Return the plan with as many accesses to each node, and the fewest moves of pages that have no home.

    Which of these go where is chance: one that is to leave a node, and one that is to come there, may stay.
    """
    moves = ((plan != guest.node) & (plan >= 0) & (guest.node >= 0)).nonzero()[0]
    count, here, there = len(system.nids), guest.node[moves], plan[moves]
    left, comes = np.bincount(here, minlength=count), np.bincount(there, minlength=count)
    if not (left * comes).any():
        return plan
    heat = guest.heat.take(moves, axis=0)
    latency = heat @ system.latency[:, comes > 0]
    alike = latency.max(axis=1) * ALIKE <= costs(heat, there, system.latency)
    load, places = row_sums(heat[alike]), plan.copy()
    lacks = np.bincount(there[alike], load, count).astype(np.float64)
    sizes, start = guest.sizes_of(moves[alike]), start_of(guest.name)
    places[moves[alike]] = _dealt(load, sizes, here[alike], there[alike], lacks, start)
    return places


def _dealt(  # noqa: PLR0913 - pages, and what is to become of them
    load: Matrix, sizes: Matrix, here: NodeIndexes, there: NodeIndexes, lacks: Matrix, start: float
) -> NodeIndexes:
    """Return places of pages: of those that were to move each node keeps, or gets, what it lacks."""
    lacks, places, moved = lacks.copy(), there.copy(), np.flatnonzero(there != here)
    for node in np.flatnonzero(lacks).tolist():
        mine = moved[here[moved] == node]
        # Of those that go, the fewest carry the same accesses if they are the hottest.
        mine = mine[hottest_first(load[mine] / sizes[mine])[::-1]]
        # To the nearest page: of ten that are alike but for chance, nine and a bit are ten.
        kept = mine[np.cumsum(load[mine]) - load[mine] / 2 <= lacks[node]]
        places[kept] = node
        lacks[node] = max(lacks[node] - load[kept].sum(), 0.0)
        moved = np.setdiff1d(moved, kept, assume_unique=True)
    order = moved[hottest_first(load[moved])]
    if len(order) and lacks.any():
        places[order] = rounded(len(order), lacks / lacks.sum(), start)
    return places


def _level(has: Matrix, more: float) -> float:
    """Return up to which level ``more`` fills the nodes that have less than it."""
    low = np.sort(has)
    for count in range(1, len(low) + 1):
        level = (low[:count].sum() + more) / count
        if count == len(low) or level <= low[count]:
            return float(level)
    return 0.0
