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
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vmplace import native
from vmplace.model.memory_system import MemorySystem, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.corner_mix import CornerMix, asked_of
from vmplace.policy.host_view import (
    REPLICATED,
    Bools,
    GuestEvidence,
    Indexes,
    NodeIndexes,
    demand,
    row_sums,
    traffic,
)

STEPS = 16
GAP = 0.003
"""Stop when at most this share of the total time could still be gained, and"""
LEFT = 0.05
"""at most this share of what could be gained at first: a guest that could be 1 % faster is to be so, too."""
ROUNDING = 1e-6
"""A gain below this share of the total time is none."""
GOLDEN = 0.6180339887498949
PROTECTED_IMPORTANCE = 10.0
"""How many times the time of a protected guest counts."""

CHUNK_PAGES = 1 << 14
"""What is known of pages is copied for so many at a time."""


@dataclass(frozen=True)
class PageTask:
    """A guest's pages to be placed: evidence, which may be replicated, and the price of moving each (ns).

    ``importance``: how many times the guest's time counts.  ``allowed[N]``: the nodes that may hold the
    pages, None for all with memory.  ``fixed[N, N]``: the guest's accesses to what does not move, in units
    of its heat.
    """

    guest: GuestEvidence
    replicable: Bools
    move_price: Matrix
    copy_price: Matrix | None = None
    importance: float = 1.0
    allowed: Bools | None = None
    fixed: Matrix | None = None

    def memory(self, system: MemorySystem) -> Bools:
        """Return which nodes [N] may hold the pages."""
        memory: Bools = system.controller > 0
        return memory if self.allowed is None else memory & self.allowed

    def traffic(self, places: NodeIndexes) -> Matrix:
        """Return the guest's accesses [N, N] with its pages at ``places``."""
        moving = traffic(self.guest.heat, places)
        return moving if self.fixed is None else moving + self.fixed

    @property
    def price_of_copies(self) -> Matrix:
        """Return the price of each copy of each page (ns)."""
        return self.move_price if self.copy_price is None else self.copy_price

    @cached_property
    def _price_if_replicable(self) -> Matrix:
        return np.where(self.replicable, self.price_of_copies, np.inf)

    def price_of_all_copies(self, copies: int) -> Matrix:
        """Return the price of so many copies of each page (ns), infinite where it may have none."""
        return self._price_if_replicable if copies == 1 else self._price_if_replicable * copies

    def of(self, pages: Indexes | slice, each: float = 1.0) -> "PageTask":
        """Return the task of these pages, of which one stands for ``each``."""
        guest = self.guest
        return replace(
            self,
            guest=replace(
                guest,
                heat=guest.heat[pages] * each,
                written=guest.written[pages],
                node=np.ascontiguousarray(guest.node[pages]),
                windows=guest.windows[pages],
                sizes=None if guest.sizes is None else guest.sizes[pages],
            ),
            replicable=self.replicable[pages],
            move_price=self.move_price[pages] * each,
            copy_price=self.price_of_copies[pages] * each,
        )


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
        used = np.flatnonzero(self.weights).tolist()
        if len(used) == 1:
            return self._at(system, task, number, used[0])
        # Pages of like heat are distributed among each other: the traffic keeps the weights, too.
        order = np.argsort(-row_sums(task.guest.heat), kind="stable")
        chosen, plan = np.empty(len(order), np.intp), task.guest.node.copy()
        chosen[order] = rounded(len(order), self.weights)
        for index in used:
            pages = np.flatnonzero(chosen == index)
            for start in range(0, len(pages), CHUNK_PAGES):
                some = pages[start : start + CHUNK_PAGES]
                plan[some] = self._at(system, task.of(some), number, index)
        return plan

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
    corners = [_Corner.of(system, tasks, [task.guest.node for task in tasks])]
    reported: list[list[Matrix] | None] = [None]
    traffics, weights, gap, first = corners[0].traffics, np.ones(1), 0.0, 0.0
    rates: Matrix | None = None
    for _ in range(steps):
        rates = _rates(system, tasks, traffics, rates)
        scale = rates / np.maximum(traffics.sum(axis=(1, 2)), 1e-300)
        prices = _prices(system, traffics, scale, importances)
        goals = [cheapest(system, task, price) for task, price in zip(tasks, prices, strict=True)]
        corners.append(_Corner.of(system, tasks, goals))
        reported.append(prices)
        mix = CornerMix.of(
            system, [one.traffics for one in corners], [one.paid for one in corners], scale, importances
        )
        weights = np.append(weights, 0.0)
        total, gap = mix.total_and_gap(weights)
        first = max(first, gap)
        if gap <= max(min(GAP * total, left * first), ROUNDING * total):
            break
        weights = mix.best(weights)
        traffics = np.tensordot(weights, np.stack([one.traffics for one in corners]), 1)
    return Mixture(traffics, reported, weights, gap)


def cheapest(system: MemorySystem, task: PageTask, prices: Matrix) -> NodeIndexes:
    """Return each page's cheapest place at ``prices[k, j]``; pages nobody touched stay."""
    guest, best = task.guest, task.guest.node.copy()
    memory = task.memory(system)
    copies = max(int((guest.worker & memory).sum()) - 1, 1)
    of_copies = task.price_of_all_copies(copies)
    native.place_cheapest(
        guest.heat, guest.node, prices, memory.view(np.uint8), task.move_price, of_copies, best
    )
    return best


def rounded(count: int, weights: Matrix) -> Indexes:
    """Return which of the corners each of ``count`` pages follows, in proportion to ``weights``."""
    point = (np.arange(1, count + 1) * GOLDEN) % 1.0
    upto = np.cumsum(weights)
    chosen: Indexes = np.minimum(np.searchsorted(upto, point, side="right"), np.flatnonzero(weights)[-1])
    return chosen


@dataclass(frozen=True)
class _Corner:
    """All pages in one place each: traffic [G, N, N], and what the way there costs each guest [G]."""

    traffics: Matrix
    paid: Matrix

    @classmethod
    def of(cls, system: MemorySystem, tasks: Sequence[PageTask], places: list[NodeIndexes]) -> "_Corner":
        """Return the corner with the guests' pages at ``places``."""
        each = list(zip(tasks, places, strict=True))
        return cls(
            np.stack([task.traffic(one) for task, one in each]),
            np.array([_paid(system, task, one) for task, one in each]),
        )


def _rates(
    system: MemorySystem, tasks: Sequence[PageTask], traffics: Matrix, before: Matrix | None
) -> Matrix:
    return solved(system, demand(tuple(task.guest for task in tasks), [*traffics]), before).rates


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


def _paid(system: MemorySystem, task: PageTask, goal: NodeIndexes) -> float:
    changed = np.flatnonzero(goal != task.guest.node)
    if not len(changed):
        return 0.0
    copies = max(int((task.guest.worker & (system.controller > 0)).sum()) - 1, 1)
    each = np.where(
        goal[changed] == REPLICATED, task.price_of_copies[changed] * copies, task.move_price[changed]
    )
    return float(each.sum())
