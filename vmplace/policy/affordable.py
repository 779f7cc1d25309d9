"""Which part of a plan is done now: what the guard's budget pays for, and what there is room for?

1. A guest may stake so much on changes (guard.py): the price of each, and of the way back.  Those go first
   that gain most for what is staked.
2. Of these, as much is done as the nodes have room for, and the window's budget of bytes and the guest's own
   limits: those first that gain most for their size.

What is gained is reckoned at the prices of accesses as they are.  At those of the plan, a page that leaves a
full controller would gain nothing: it is not full any more then.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix
from vmplace.policy import guard
from vmplace.policy.host_view import (
    ABSENT,
    REPLICATED,
    GuestEvidence,
    HostView,
    Indexes,
    NodeIndexes,
    Room,
    costs,
    hottest_first,
    row_sums,
)


@dataclass(frozen=True)
class Change:
    """A guest's pages, where they ought to be, and what its accesses cost as yet (``Wanted``)."""

    guest: GuestEvidence
    plan: NodeIndexes
    prices: Matrix

    @cached_property
    def pages(self) -> Indexes:
        """Return the pages that are to be elsewhere."""
        pages: Indexes = (self.plan != self.guest.node).nonzero()[0]
        return pages

    def to(self, plan: NodeIndexes) -> "Change":
        """Return the change to other places."""
        return self if plan is self.plan else replace(self, plan=plan)

    def best_first(self, pages: Indexes, prices: Matrix) -> Indexes:
        """Return the order of ``pages`` by what all gain for each of ``prices``, of like ones by heat."""
        guest, heat = self.guest, self.guest.heat.take(pages, axis=0)
        order = hottest_first(row_sums(heat) / guest.sizes_of(pages))
        saved = costs(heat, guest.node[pages], self.prices) - costs(heat, self.plan[pages], self.prices)
        worth = np.maximum(saved, 0.0) / prices
        return order[hottest_first(worth[order])]


def affordable(view: HostView, change: Change, memory: guard.Memory) -> NodeIndexes:
    """Return the changes that gain most for what is staked, way back included, as far as the budget goes."""
    guest, plan, changed = change.guest, change.plan, change.pages
    if not len(changed):
        return plan
    budget_ns = memory.budget_ns(view.now_ns, guest.slowdown_bound)
    stakes = stakes_ns(view, guest, changed, plan, memory)
    if float(stakes.sum()) <= budget_ns:
        return plan
    kept, free = guest.node.copy(), stakes <= 0
    kept[changed[free]] = plan[changed[free]]
    paid, stakes = changed[~free], stakes[~free]
    order = change.best_first(paid, stakes)
    chosen = paid[order[: int(np.searchsorted(np.cumsum(stakes[order]), budget_ns, side="right"))]]
    kept[chosen] = plan[chosen]
    return kept


def fitting(change: Change, room: Room | None) -> tuple[NodeIndexes, Room | None]:
    """Return the changes that gain most for their size, as far as there is room, and the room left then."""
    guest, plan, changed = change.guest, change.plan, change.pages
    if room is None or not len(changed):
        return plan, room
    if room.churn < float(guest.sizes_of(changed).min()):
        return guest.node, room
    kept, free, copies, churn = guest.node.copy(), room.free.copy(), room.copies.copy(), room.churn
    own_moves = guest.move_pages
    order = changed[change.best_first(changed, guest.sizes_of(changed))]
    sizes = guest.sizes_of(order)
    for target in np.unique(plan[order]).tolist():
        mine = plan[order] == target
        upto = np.cumsum(sizes[mine])
        if target == REPLICATED:
            near = guest.worker
            times = max(int(near.sum()) - 1, 1)
            fits = upto <= float(np.minimum(copies, free)[near].min(initial=np.inf))
            fits &= upto * times <= min(churn, guest.copy_pages)
            used = float(upto[fits][-1]) if fits.any() else 0.0
            copies[near] -= used
            free[near] -= used
            churn -= used * times
        else:
            fits = (upto <= free[target]) & (upto <= min(churn, own_moves))
            used = float(upto[fits][-1]) if fits.any() else 0.0
            free[target] -= used
            churn -= used
            own_moves -= used
        chosen = order[mine][fits]
        kept[chosen] = plan[chosen]
    return kept, Room(churn, free, copies)


def copies_of(guest: GuestEvidence, places: NodeIndexes) -> npt.NDArray[np.float64]:
    """Return how often each page [P] is copied to get to its place."""
    return np.where(places == REPLICATED, guest.copies, 1).astype(np.float64)


def stakes_ns(
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
    price = copies_of(guest, there) * pause
    return np.where(returns, 0.0, price + np.where(leaves | (there == REPLICATED), back, 0.0))
