"""Whose pages are to be placed, on which nodes and at which prices: those of one guest, or of many together?

A step of the descent asks each page for its cheapest place.  Guests whose pages may be on the same nodes are
asked in one go: of hundreds of small ones the calls would cost more than their pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vmplace import native
from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import REPLICATED, Bools, GuestEvidence, Indexes, NodeIndexes, traffic


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

    def copies(self, memory: Bools) -> int:
        """Return how many copies a page has that has some, if these nodes may hold it."""
        return max(int(np.count_nonzero(self.guest.worker & memory)) - 1, 1)

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

    def price_of_way(self, system: MemorySystem, places: NodeIndexes) -> float:
        """Return the price of all that is to be done until the pages are at ``places`` (ns).

        Pages that may not move (an infinite price) are not moved, whatever a plan says, and cost nothing.
        """
        changed = (places != self.guest.node).nonzero()[0]
        each, are_copied = self.move_price[changed], places[changed] == REPLICATED
        if are_copied.any():
            copies = self.copies(self.memory(system))
            each = np.where(are_copied, self.price_of_copies[changed] * copies, each)
        return float(each[np.isfinite(each)].sum())

    def thinned(self, pages: slice, each: float) -> "PageTask":
        """Return the task of these pages, of which one stands for ``each``: what prices depend on."""
        heat, node = self.guest.heat[pages] * each, np.ascontiguousarray(self.guest.node[pages])
        return PageTask(
            replace(self.guest, heat=heat, node=node),
            self.replicable[pages],
            self.move_price[pages] * each,
            self.price_of_copies[pages] * each,
            self.importance,
            self.allowed,
            self.fixed,
        )


def cheapest(system: MemorySystem, task: PageTask, prices: Matrix) -> NodeIndexes:
    """Return each page's cheapest place at ``prices[k, j]``; pages nobody touched stay."""
    guest, best = task.guest, task.guest.node.copy()
    memory = task.memory(system)
    of_copies = task.price_of_all_copies(task.copies(memory))
    native.place_cheapest(
        guest.heat, guest.node, prices, memory.view(np.uint8), task.move_price, of_copies, best
    )
    return best


@dataclass(frozen=True)
class TaskGroup:
    """Tasks of guests that are as important, with the same nodes and as many copies.

    ``numbers[T]`` of the tasks.  ``whole``: their pages, one task's after the other's, with what the cheapest
    place depends on.  ``bounds[T + 1]``: where those of each begin, and the end.
    """

    numbers: list[int]
    whole: PageTask
    bounds: Indexes

    @classmethod
    def of(cls, numbers: list[int], tasks: Sequence[PageTask]) -> "TaskGroup":
        """Return the group of these tasks."""
        some = [tasks[number] for number in numbers]
        bounds = np.cumsum([0, *(len(task.guest.node) for task in some)])
        return cls(numbers, some[0] if len(some) == 1 else _joined(some), bounds)

    def changed(self, before: NodeIndexes, after: NodeIndexes) -> list[tuple[int, slice]]:
        """Return the tasks of which a page is elsewhere ``after``: number, and where their pages are."""
        upto = np.searchsorted(np.flatnonzero(before != after), self.bounds)
        bounds = self.bounds.tolist()
        return [
            (self.numbers[nth], slice(bounds[nth], bounds[nth + 1]))
            for nth in np.flatnonzero(upto[1:] > upto[:-1]).tolist()
        ]


def grouped(system: MemorySystem, tasks: Sequence[PageTask]) -> list[TaskGroup]:
    """Return the tasks in groups."""
    alike: dict[tuple[float, int, bytes], list[int]] = {}
    for number, task in enumerate(tasks):
        memory = task.memory(system)
        key = task.importance, task.copies(memory), memory.tobytes()
        alike.setdefault(key, []).append(number)
    return [TaskGroup.of(some, tasks) for some in alike.values()]


def _joined(tasks: Sequence[PageTask]) -> PageTask:
    """Return the pages of all as one task, with what the tasks have in common."""
    first, guests = tasks[0], [task.guest for task in tasks]
    return PageTask(
        replace(
            first.guest,
            heat=np.concatenate([guest.heat for guest in guests]),
            node=np.concatenate([guest.node for guest in guests]),
        ),
        np.concatenate([task.replicable for task in tasks]),
        np.concatenate([task.move_price for task in tasks]),
        np.concatenate([task.price_of_copies for task in tasks]),
        first.importance,
        first.allowed,
    )
