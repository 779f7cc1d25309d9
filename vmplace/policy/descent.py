"""Which placement of all guests' pages costs all their accesses together the least time?

1. Solve the memory system for the present placement: rates, and what one more access from node k to
   node j would cost everybody (its latency, its waits, and the waits it causes).
   What it causes to a protected guest counts several times (``importance``).
2. At these prices each page has a cheapest node (or a replica per node, if nobody writes it); moving
   costs, too, spread over the windows that the page is expected to stay.
3. Mix all placements found so far, the present one among them, so that the total is least (``CornerMix``);
   go to 1.

Example: 100 pages that two nodes write alike all lie on node 0, whose controller they keep busy.  No page has
a better node by itself: the mixture of "all on node 0" and "all on node 1" that costs least is half of each.

>>> from vmplace.model.described_memory import described_memory
>>> from vmplace.policy.host_view import GuestEvidence
>>> distances, mib_per_s = np.array([[10.0, 20.0], [20.0, 10.0]]), np.array([[2e3, 1e3], [1e3, 2e3]])
>>> system = described_memory((0, 1), distances, mib_per_s, np.ones(2))
>>> guest = GuestEvidence(
...     name="db", heat=np.full((100, 2), 10.0), written=np.ones(100, bool), node=np.zeros(100, np.int8),
...     worker=np.ones(2, bool), windows=np.ones(100, np.int64), read_ratio=0.5, parallelism=2.0,
...     think_ns=50.0, mlp=2.5,
... )
>>> task = PageTask(guest, replicable=np.zeros(100, bool), move_price=np.zeros(100))
>>> mixture = descended(system, [task])
>>> np.bincount(mixture.distributed(system, task, 0)).tolist(), mixture.gap < GAP
([50, 50], True)

Source: the conditional-gradient method of Frank and Wolfe (1956), fully corrective: the total is convex in
the traffic, so the gap between the prices' promise and the present bounds what is left to gain.
Limits: prices are of a steady state; a node's capacity is the caller's concern.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from vmplace.model.memory_system import MemorySystem, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.corner_mix import CornerMix, asked_of
from vmplace.policy.host_view import Indexes, NodeIndexes, demand, hottest_first, row_sums
from vmplace.policy.page_task import PageTask, TaskGroup, cheapest, grouped

STEPS = 16
GAP = 0.003
"""Stop when at most this share of the total time, by the largest weight of a guest, could be gained, and"""
LEFT = 0.05
"""at most this share of what could be gained at first: a guest that could be 1 % faster is to be so, too."""
ROUNDING = 1e-6
"""A gain below this share of the total time is none."""
GOLDEN = 0.6180339887498949
PROTECTED_IMPORTANCE = 30.0
"""How many times the time of a protected guest counts."""


@dataclass(frozen=True)
class Mixture:
    """A fractional placement: each guest's traffic [G, N, N], and the corners that are mixed, by weight.

    A corner is given by the prices [N, N] of each guest at which its places are the cheapest ones; None where
    the pages are now.
    """

    traffics: Matrix
    corners: list[list[Matrix] | None]
    weights: Matrix
    gap: float

    def distributed(self, system: MemorySystem, task: PageTask, number: int) -> NodeIndexes:
        """Return places of the pages of guest ``number``, distributed over the corners in proportion."""
        used = self.weights.nonzero()[0].tolist()
        places = [self._at(system, task, number, index) for index in used]
        first, *others = places
        are_other = np.zeros(len(first), np.bool_)
        for one in others:
            are_other |= one != first
        differ = are_other.nonzero()[0]
        if not len(differ):
            return first
        # Pages of like heat are distributed among each other: the traffic keeps the weights, too.
        order = differ[hottest_first(row_sums(task.guest.heat.take(differ, axis=0)))]
        chosen, plan = rounded(len(order), self.weights, start_of(task.guest.name)), first.copy()
        for index, one in zip(used[1:], others, strict=True):
            pages = order[chosen == index]
            plan[pages] = one[pages]
        return plan

    def prices(self, number: int) -> Matrix:
        """Return the first prices [N, N] of guest ``number``: what one more access costs all, in its time.

        That is with all pages where they are.
        """
        prices = self.corners[1] if len(self.corners) > 1 else None
        return np.zeros_like(self.traffics[number]) if prices is None else prices[number]

    def shares(self, system: MemorySystem, task: PageTask, number: int) -> Matrix:
        """Return which share of each page of guest ``number`` ought to be at each node [P, N].

        For pages that stand for many; none of them may be replicated.
        """
        shares = np.zeros_like(task.guest.heat)
        for index in np.flatnonzero(self.weights).tolist():
            places = self._at(system, task, number, index)
            shares[np.arange(len(places)), places] += self.weights[index]
        return shares

    def _at(self, system: MemorySystem, task: PageTask, number: int, corner: int) -> NodeIndexes:
        prices = self.corners[corner]
        return task.guest.node if prices is None else cheapest(system, task, prices[number])


def descended(
    system: MemorySystem, tasks: Sequence[PageTask], steps: int = STEPS, left: float = LEFT
) -> Mixture:
    """Return the mixture of placements after at most ``steps`` steps, the present placement first.

    ``left``: which share of what could be gained at first need not be.
    """
    importances = np.array([task.importance for task in tasks])
    groups, corners = grouped(system, tasks), [_Corner.present(tasks)]
    places = [group.whole.guest.node for group in groups]
    reported: list[list[Matrix] | None] = [None]
    traffics, weights, gap, first = corners[0].traffics, np.ones(1), 0.0, 0.0
    rates: Matrix | None = None
    for _ in range(steps):
        rates = _rates(system, tasks, traffics, rates)
        scale = rates / np.maximum(traffics.sum(axis=(1, 2)), 1e-300)
        prices = _prices(system, traffics, scale, importances)
        corner = corners[-1]
        for number, group in enumerate(groups):
            before, places[number] = places[number], cheapest(system, group.whole, prices[group.numbers[0]])
            corner = corner.with_group(system, tasks, group, before, places[number])
        corners.append(corner)
        reported.append(prices)
        mix = CornerMix.of(
            system, [one.traffics for one in corners], [one.paid for one in corners], scale, importances
        )
        weights = np.append(weights, 0.0)
        total, gap = mix.total_and_gap(weights)
        first = max(first, gap)
        if gap <= max(min(GAP * total / importances.max(), left * first), ROUNDING * total):
            break
        weights = mix.best(weights)
        traffics = np.tensordot(weights, np.stack([one.traffics for one in corners]), 1)
    return Mixture(traffics, reported, weights, gap)


def rounded(count: int, weights: Matrix, start: float = 0.0) -> Indexes:
    """Return which of the corners each of ``count`` pages follows, in proportion to ``weights``.

    ``start`` is from 0 to 1, and another one for each guest: then those of few pages are in proportion, too.
    """
    point = np.arange(1, count + 1) * GOLDEN + start
    point -= np.floor(point)
    used = weights.nonzero()[0]
    nth = np.zeros(count, np.intp)
    # Corners are few: several times faster than to search, or a remainder.
    for upto in np.cumsum(weights[used])[:-1].tolist():
        nth += point >= upto
    return used[nth]


def start_of(name: str) -> float:
    """Return where the guest begins: by its name, as its place among the others changes with these."""
    return crc32(name.encode(errors="surrogatepass")) / 2**32


@dataclass(frozen=True)
class _Corner:
    """All pages in one place each: traffic [G, N, N], and what the way there costs each guest [G]."""

    traffics: Matrix
    paid: Matrix

    @classmethod
    def present(cls, tasks: Sequence[PageTask]) -> "_Corner":
        """Return the corner with all pages where they are."""
        return cls(np.stack([task.traffic(task.guest.node) for task in tasks]), np.zeros(len(tasks)))

    def with_group(
        self,
        system: MemorySystem,
        tasks: Sequence[PageTask],
        group: TaskGroup,
        before: NodeIndexes,
        after: NodeIndexes,
    ) -> "_Corner":
        """Return the corner with the group's pages at ``after``, which are at ``before``.

        From one step to the next, most guests' pages stay.
        """
        traffics, paid = self.traffics.copy(), self.paid.copy()
        for number, mine in group.changed(before, after):
            traffics[number] = tasks[number].traffic(after[mine])
            paid[number] = tasks[number].price_of_way(system, after[mine])
        return _Corner(traffics, paid)


def _rates(
    system: MemorySystem, tasks: Sequence[PageTask], traffics: Matrix, before: Matrix | None
) -> Matrix:
    return solved(system, demand(tuple(task.guest for task in tasks), traffics), before).rates


def _prices(system: MemorySystem, traffics: Matrix, scale: Matrix, importances: Matrix) -> list[Matrix]:
    """Return, for each guest, what one more of its accesses costs all, in units of its own time."""
    asked, weighted = asked_of(system, scale, traffics), asked_of(system, importances * scale, traffics)
    waits, margins = system.waits_and_margins(asked)
    # What is caused to others: the guests' shares of the rate at a resource, each with its importance.
    caused = (margins - waits) * weighted / np.maximum(asked, 1e-300)
    by_importance = {
        importance: system.latency + system.visits @ (waits + caused / importance)
        for importance in {*importances.tolist()}
    }
    return [by_importance[importance] for importance in importances.tolist()]
