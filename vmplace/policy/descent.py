"""Which placement of all guests' pages costs all their accesses together the least time?

1. Solve the memory system for the present placement: rates, and what one more access from node k to
   node j would cost everybody (its latency, its waits, and the waits it causes).
   What it causes to a protected guest counts several times (``heed``).
2. At these prices each page has a cheapest node (or a replica per node, if nobody writes it); moving
   costs, too, spread over the windows that the page is expected to stay.
3. Go from the present mixture towards these cheapest places as far as the total falls; go to 1.

Source: the conditional-gradient method of Frank and Wolfe (1956): the total is convex in the traffic, so
the gap between the prices' promise and the present bounds what is left to gain.
Limits: prices are of a steady state; a node's capacity is the caller's concern.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vmplace import native
from vmplace.model.memory_system import MemorySystem, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import (
    REPLICATED,
    Bools,
    GuestEvidence,
    NodeIndexes,
    demand,
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


@dataclass(frozen=True)
class PageTask:
    """A guest's pages to be placed: evidence, which may be replicated, and the price of moving each (ns).

    ``heed``: how many times the guest's time counts.
    """

    guest: GuestEvidence
    replicable: Bools
    move_price: Matrix
    copy_price: Matrix | None = None
    heed: float = 1.0

    @property
    def price_of_copies(self) -> Matrix:
        """Return the price of each copy of each page (ns)."""
        return self.move_price if self.copy_price is None else self.copy_price


@dataclass(frozen=True)
class Mixture:
    """A fractional placement: for each guest the traffic, and the placements that are mixed by weight."""

    traffics: list[Matrix]
    placements: list[list[NodeIndexes]]
    weights: list[float]
    gap: float


def descended(system: MemorySystem, tasks: Sequence[PageTask], steps: int = STEPS) -> Mixture:
    """Return the mixture of placements after at most ``steps`` steps, the present placement first."""
    placements = [[task.guest.node] for task in tasks]
    traffics = [traffic(task.guest.heat, task.guest.node) for task in tasks]
    heeds = [task.heed for task in tasks]
    moves, weights, gap, first = [0.0] * len(tasks), [1.0], 0.0, 0.0
    for _ in range(steps):
        rates = _rates(system, tasks, traffics)
        scale = [rate / max(one.sum(), 1e-300) for rate, one in zip(rates, traffics, strict=True)]
        prices = _prices(system, traffics, scale, heeds)
        goals = [cheapest(system, task, price) for task, price in zip(tasks, prices, strict=True)]
        aims = [traffic(task.guest.heat, goal) for task, goal in zip(tasks, goals, strict=True)]
        paid = [_paid(system, task, goal) for task, goal in zip(tasks, goals, strict=True)]
        weighed = [heed * one for heed, one in zip(heeds, scale, strict=True)]
        total, gap = _gap(prices, traffics, aims, moves, paid, weighed)
        first = max(first, gap)
        if gap <= max(min(GAP * total, LEFT * first), ROUNDING * total):
            break
        share = _best_share(system, traffics, aims, moves, paid, scale, heeds)
        if share == 0.0:
            break
        traffics = [(1 - share) * a + share * b for a, b in zip(traffics, aims, strict=True)]
        moves = [(1 - share) * a + share * b for a, b in zip(moves, paid, strict=True)]
        weights = [(1 - share) * weight for weight in weights] + [share]
        for kept, goal in zip(placements, goals, strict=True):
            kept.append(goal)
    return Mixture(traffics, placements, weights, gap)


def cheapest(system: MemorySystem, task: PageTask, prices: Matrix) -> NodeIndexes:
    """Return each page's cheapest place at ``prices[k, j]``; pages nobody touched stay."""
    guest, best = task.guest, task.guest.node.copy()
    memory = system.controller > 0
    copies = max(int((guest.worker & memory).sum()) - 1, 1)
    price_of_copies = np.where(task.replicable, task.price_of_copies * copies, np.inf)
    native.place_cheapest(
        guest.heat, guest.node, prices, memory.view(np.uint8), task.move_price, price_of_copies, best
    )
    return best


def rounded(placements: Sequence[NodeIndexes], weights: Sequence[float]) -> NodeIndexes:
    """Return one placement whose pages are dealt out over ``placements`` in proportion to ``weights``."""
    if len(placements) == 1:
        return placements[0]
    point = (np.arange(1, len(placements[0]) + 1) * GOLDEN) % 1.0
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), point, side="right"), len(weights) - 1)
    dealt: NodeIndexes = np.stack(placements)[chosen, np.arange(len(point))]
    return dealt


def _rates(system: MemorySystem, tasks: Sequence[PageTask], traffics: list[Matrix]) -> Matrix:
    return solved(system, demand(tuple(task.guest for task in tasks), traffics)).rates


def _prices(
    system: MemorySystem, traffics: list[Matrix], scale: list[float], heeds: list[float]
) -> list[Matrix]:
    """Return, for each guest, what one more of its accesses costs all, in units of its own time."""
    asked = _asked(system, traffics, scale)
    heeded = _asked(system, traffics, [heed * one for heed, one in zip(heeds, scale, strict=True)])
    waits = system.waits(asked)
    # What is caused to others: the guests' shares of the rate at a resource, each with its heed.
    caused = (system.marginal_waits(asked) - waits) * heeded / np.maximum(asked, 1e-300)
    return [system.latency + system.visits @ (waits + caused / heed) for heed in heeds]


def _asked(system: MemorySystem, traffics: list[Matrix], scale: list[float]) -> Matrix:
    """Return the rate at each resource, every guest's traffic scaled to accesses per ns."""
    total = np.sum([s * one for s, one in zip(scale, traffics, strict=True)], axis=0)
    rates: Matrix = np.einsum("kj,kjr->r", total, system.visits)
    return rates


def _paid(system: MemorySystem, task: PageTask, goal: NodeIndexes) -> float:
    copies = max(int((task.guest.worker & (system.controller > 0)).sum()) - 1, 1)
    changed = goal != task.guest.node
    each = np.where(goal == REPLICATED, task.price_of_copies * copies, task.move_price)
    return float(each[changed].sum())


def _gap(  # noqa: PLR0913  (two points of the descent, each of traffic and moves)
    prices: list[Matrix],
    traffics: list[Matrix],
    aims: list[Matrix],
    moves: list[float],
    paid: list[float],
    scale: list[float],
) -> tuple[float, float]:
    """Return the present total at these prices, and how much less it is at the aims."""
    now = [float((p * one).sum()) + m for p, one, m in zip(prices, traffics, moves, strict=True)]
    then = [float((p * one).sum()) + m for p, one, m in zip(prices, aims, paid, strict=True)]
    total = sum(s * value for s, value in zip(scale, now, strict=True))
    return total, total - sum(s * value for s, value in zip(scale, then, strict=True))


def _best_share(  # noqa: PLR0913  (as above)
    system: MemorySystem,
    traffics: list[Matrix],
    aims: list[Matrix],
    moves: list[float],
    paid: list[float],
    scale: list[float],
    heeds: list[float],
) -> float:
    """Return the share of the way to the aims at which the total is least (golden-section search)."""
    weighed = [heed * one for heed, one in zip(heeds, scale, strict=True)]

    # Rates, and all that they cost but for the waits, are linear in the share.
    here = _LineEnd.of(system, traffics, moves, scale, weighed)
    there = _LineEnd.of(system, aims, paid, scale, weighed)

    def total(share: float) -> float:
        left = 1 - share
        waits = system.waits(left * here.asked + share * there.asked)
        return (
            left * here.plain
            + share * there.plain
            + float((left * here.heeded + share * there.heeded) @ waits)
        )

    low, high = 0.0, 1.0
    for _ in range(20):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if total(left) < total(right) else (left, high)
    best = min((0.0, (low + high) / 2, 1.0), key=total)
    return 0.0 if best < 1e-6 else best


@dataclass(frozen=True)
class _LineEnd:
    """One end of a step: cost of moves and unloaded latency, rates at each resource, and these with heed."""

    plain: float
    asked: Matrix
    heeded: Matrix

    @classmethod
    def of(
        cls,
        system: MemorySystem,
        traffics: list[Matrix],
        moves: list[float],
        scale: list[float],
        weighed: list[float],
    ) -> "_LineEnd":
        """Return what these traffics and moves come to."""
        each = zip(weighed, moves, traffics, strict=True)
        plain = sum(w * (move + float((system.latency * one).sum())) for w, move, one in each)
        return cls(plain, _asked(system, traffics, scale), _asked(system, traffics, weighed))
