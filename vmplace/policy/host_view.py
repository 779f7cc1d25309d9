"""What does a policy see of all guests, page by page and by node?  What may it answer?

The stock-kernel ladder sees no nodes (``plan.Snapshot``); this is the view of hosts that do: node-rooted
A/D bits, IBS, hint faults, or the full truth of a trace.  Pure data; indexes, not nids, throughout.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.model.memory_system import Demand, MemorySystem
from vmplace.model.metrics import Matrix

Bools = npt.NDArray[np.bool_]
NodeIndexes = npt.NDArray[np.int8]
Indexes = npt.NDArray[np.intp]

ABSENT = -1
"""The page is not in memory."""
REPLICATED = -2
"""The page has a read-only copy on every node that has memory and CPUs."""
ONCE_EACH = np.ones(1 << 7)
"""A node's index is a signed byte: there are no more."""
HUGE_PAGES = 512
"""4 KiB pages in a batch of moves, and in the blocks whose pages tell of each other."""
COPY_SHARE = 0.2
"""Of what a move of 4 KiB costs, the copying: 0.4 us, at 10 GB/s.  A huge page pays the rest once."""
READ_RATIO = 0.95
"""Carrefour (ASPLOS'13, section 3.2): replicate if at least this share of the accesses are reads."""


@dataclass(frozen=True)
class Counters:
    """What counters tell of one guest since the last look: exact, whatever the source of page statistics.

    ``accesses[k, j]``: DRAM accesses per ns from node k to j.  ``latency_ns`` of one.  ``busy_share`` of the
    CPUs' time that was not spent waiting for memory (stands for IPC / best IPC).  ``read_ratio``: share of
    reads among DRAM accesses.  ``faults_per_s``: pages touched for the first time.
    """

    accesses: Matrix
    latency_ns: float
    busy_share: float
    read_ratio: float
    faults_per_s: float


@dataclass(frozen=True)
class GuestEvidence:
    """What a source showed of one guest with P pages on a host with N nodes.

    ``heat[P, N]`` estimates the DRAM accesses from each node that are still to come: those seen lately.  A
    page never seen is zero there, as it is for the memory.  ``written[P]``: a write was seen lately.
    ``node[P]``: index of the page's node, ABSENT or REPLICATED.  ``worker[N]``: vCPUs run on the node.
    ``windows[P]``: over how many windows a move of the page is paid (1: ``heat`` is all there will be).
    ``read_ratio``: share of reads among the accesses, or None if the source sees every written page.
    ``parallelism``, ``think_ns``, ``mlp``: as in ``Demand``, from counters.

    The rest is None where nobody looked: ``recent[P, N]``, the accesses seen since the last look;
    ``samples[P, N]`` and ``samples_recent``, how many observations were made lately and since the last look;
    ``sharing[V, V]``, accesses of two vCPUs to the same pages; ``vcpu_node[V]``.  ``slowdown_bound``: the
    guest is protected, and may not get slower than by this share.  ``sizes[P]``: 4 KiB pages in each,
    where an entry stands for several; ``huge[P]``: which of these are one page of the host each, None: all of
    them, where others are so many small pages.  ``allowed[N]``: nodes that may hold the pages, None: all
    with memory.  ``stays[P]``: which may have copies, but not move, None: none of them.
    ``move_pages``, ``copy_pages``: so many 4 KiB pages may move by the guest's own rate, and become copies.
    ``barred[P, N]``: on which of the allowed nodes each page may not be, None: on none of them.
    ``known_ns``: for how long the guest was known before its first look here, and its pages used like this.
    ``calm_since_ns``: when its controller was last full, None: it is now, or nobody knows.
    ``may_tie[N]``: nodes to which all of its vCPUs may be tied, None: they stay where they may run now.
    ``may_change``: what is planned for it is done now, if the guard lets it.  ``is_counted``: somebody counts
    its accesses; else how often it asks for memory is a guess.
    """

    name: str
    heat: Matrix
    written: Bools
    node: NodeIndexes
    worker: Bools
    windows: npt.NDArray[np.int64]
    read_ratio: float | None
    parallelism: float
    think_ns: float
    mlp: float
    recent: Matrix | None = None
    samples: Matrix | None = None
    samples_recent: Matrix | None = None
    sharing: Matrix | None = None
    vcpu_node: Indexes | None = None
    counters: Counters | None = None
    slowdown_bound: float | None = None
    sizes: Matrix | None = None
    huge: Bools | None = None
    allowed: Bools | None = None
    stays: Bools | None = None
    known_ns: float = 0.0
    calm_since_ns: float | None = None
    may_tie: Bools | None = None
    may_change: bool = True
    is_counted: bool = True
    move_pages: float = np.inf
    copy_pages: float = np.inf
    barred: Bools | None = None

    @property
    def present(self) -> Bools:
        """Return which pages are in memory."""
        here: Bools = self.node != ABSENT
        return here

    def unbarred(self, plan: NodeIndexes) -> NodeIndexes:
        """Return the plan with pages as they are that it has where they may not be."""
        if self.barred is None:
            return plan
        wrong = (plan >= 0) & np.take_along_axis(self.barred, np.maximum(plan, 0)[:, None], axis=1)[:, 0]
        unbarred: NodeIndexes = np.where(wrong, self.node, plan)
        return unbarred

    @property
    def copies(self) -> int:
        """Return how many copies a page has that has some."""
        return max(self.nodes_of_vcpus - 1, 1)

    @property
    def nodes_of_vcpus(self) -> int:
        """Return on how many nodes vCPUs run."""
        return int(np.count_nonzero(self.worker))

    def holds(self, system: MemorySystem) -> Bools:
        """Return which nodes [N] may hold the pages."""
        memory: Bools = system.controller > 0
        return memory if self.allowed is None else memory & self.allowed

    def may_copy(self, system: MemorySystem) -> bool:
        """Return whether pages that nobody writes may have copies: on each of several nodes of its vCPUs."""
        # Copies for one node alone would be a move by another name, which no kernel makes.
        near = self.nodes_of_vcpus > 1 and bool(self.holds(system)[self.worker].all())
        return near and (self.read_ratio is None or self.read_ratio >= READ_RATIO)

    def sizes_of(self, pages: Indexes) -> Matrix:
        """Return how many 4 KiB pages each of ``pages`` is."""
        return np.ones(len(pages)) if self.sizes is None else self.sizes[pages]

    def moved(self, pages: Indexes) -> Matrix:
        """Return as how many pages of 4 KiB each of ``pages`` is copied and unmapped (``moved_as``)."""
        sizes = self.sizes_of(pages)
        moved: Matrix = moved_as(sizes, self.unmapped(pages)) if self._has_huge else sizes
        return moved

    @cached_property
    def _has_huge(self) -> bool:
        return self.huge is None or bool(self.huge.any())

    @cached_property
    def mean_moved(self) -> float:
        """Return the same of 4 KiB on average, by the pages that are in memory."""
        if self.sizes is None or not self._has_huge:
            return 1.0
        here = np.flatnonzero(self.present)
        if not len(here):
            return 1.0
        return float(self.moved(here).sum() / self.sizes[here].sum())

    def unmapped(self, pages: Indexes) -> Matrix:
        """Return how many pages of the host each of ``pages`` is, which are unmapped one by one."""
        if self.huge is None or self.sizes is None:
            return np.ones(len(pages))
        single: Matrix = np.where(self.huge[pages], 1.0, self.sizes[pages])
        return single

    def of_pages(self, pages: Indexes) -> "GuestEvidence":
        """Return the evidence of some pages: what a plan needs, the rest stays that of all."""
        if len(pages) == len(self.node):
            # In ascending order these are all of them: not copied, most of what a plan takes.
            return self
        return replace(
            self,
            # Several times faster than an index.
            heat=self.heat.take(pages, axis=0),
            written=self.written[pages],
            node=self.node[pages],
            # The same for all pages, most often: no copy of it, then.
            windows=self.windows[pages] if self.windows.strides[0] else self.windows[: len(pages)],
            sizes=None if self.sizes is None else self.sizes[pages],
            huge=None if self.huge is None else self.huge[pages],
            stays=None if self.stays is None else self.stays[pages],
        )


@dataclass(frozen=True)
class Room:
    """What one plan may use, in 4 KiB pages: to be moved or copied in all; free on each node [N], of that for
    copies."""

    churn: float
    free: Matrix
    copies: Matrix


@dataclass(frozen=True)
class HostView:
    """All guests of the host at one moment.

    ``move_ns`` is what moving a page costs one vCPU, ``flush_ns`` all of a guest's vCPUs at once: their
    share of
    a batch's TLB flush; ``collapse_ns``: a vCPU, when copies of a page are dropped.  ``cpus[N]``: CPUs of
    each node, which vCPUs share.  ``cores[N]``: how many vCPUs each node takes, if not as many as CPUs.
    ``room``: what a plan may use, None: whatever it wants.
    """

    system: MemorySystem
    capacity_pages: Matrix
    guests: tuple[GuestEvidence, ...]
    move_ns: float
    flush_ns: float = 0.0
    now_ns: float = 0.0
    cpus: Matrix | None = None
    collapse_ns: float = 0.0
    room: "Room | None" = None
    cores: Matrix | None = None

    @property
    def memory(self) -> npt.NDArray[np.intp]:
        """Return the indexes of the nodes with memory."""
        return np.flatnonzero(self.system.controller > 0)

    def pause_ns(self, guest: GuestEvidence) -> float:
        """Return how long a moved page of 4 KiB holds up the guest as a whole."""
        return self.move_ns / max(guest.parallelism, 1.0) + self.flush_ns

    def worth(self, guest: GuestEvidence, pages: Indexes) -> Matrix:
        """Return as how many pages of 4 KiB each of ``pages`` holds up the guest when it moves.

        A flush is of a batch of bytes, so a page has its share by size.
        """
        if guest.sizes is None:
            return np.ones(len(pages))
        one_ns, move_ns = max(self.pause_ns(guest), 1e-300), self.move_ns / max(guest.parallelism, 1.0)
        moved, sizes = guest.moved(pages), guest.sizes.take(pages)
        worth: Matrix = moved * (move_ns / one_ns) + sizes * (self.flush_ns / one_ns)
        return worth

    def mean_pause_ns(self, guest: GuestEvidence) -> float:
        """Return how long 4 KiB hold up the guest on average, by the pages that it has."""
        return self.move_ns / max(guest.parallelism, 1.0) * guest.mean_moved + self.flush_ns

    def free_pages(self) -> Matrix:
        """Return the 4 KiB pages that each node has left."""
        free: Matrix = self.capacity_pages.astype(np.float64)
        for guest in self.guests:
            place = guest.node.astype(np.intp) + 2
            held = np.bincount(place, weights=guest.sizes, minlength=len(free) + 2)
            free = free - held[2:] - np.where(self.system.controller > 0, held[0], 0)
            free = free + 0.0
        return free


def moved_as(pages: Matrix | float, unmapped: Matrix | float = 1.0) -> Any:
    """Return as how many pages of 4 KiB so many cost that are unmapped as fewer, and copied in full."""
    return unmapped + COPY_SHARE * (pages - unmapped)


def row_sums(counts: Matrix) -> npt.NDArray[np.float64]:
    """Return each page's sum over the nodes, several times faster than ``sum(axis=1)`` on a few columns."""
    sums: npt.NDArray[np.float64] = counts @ ONCE_EACH[: counts.shape[1]]
    return sums


def hottest_first(heat: npt.NDArray[np.float64]) -> Indexes:
    """Return the order of pages by heat [P]; what differs by less than a part in 128 is as it comes.

    By the upper half of a float alone, which sorts several times faster; none may be below zero, or NaN.

    >>> hottest_first(np.array([1.0, 0.0, 3e9, 1.001])).tolist()
    [2, 0, 3, 1]
    """
    upper = (heat.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.argsort(~upper, kind="stable")


def traffic(heat: Matrix, node: NodeIndexes) -> Matrix:
    """Return accesses by (CPU node, memory node); replicas are read locally, absent pages not at all."""
    by_node = np.empty((heat.shape[1], heat.shape[1]))
    native.place_traffic(np.ascontiguousarray(heat), node, by_node)
    return by_node


def costs(heat: Matrix, node: NodeIndexes, prices: Matrix) -> Matrix:
    """Return what each page's accesses cost at ``prices[k, j]`` of one from node k to memory of node j.

    Copies are accessed locally; pages that are absent cost nothing.
    """
    cost = np.empty(len(node))
    native.place_costs(np.ascontiguousarray(heat), node, np.ascontiguousarray(prices), cost)
    return cost


def demand(guests: tuple[GuestEvidence, ...], traffics: list[Matrix] | Matrix) -> Demand:
    """Return what the guests ask of the memory if their accesses were ``traffics``."""
    each = np.asarray(traffics)
    totals = each.reshape(len(each), -1).sum(axis=1)
    return Demand(
        each / np.maximum(totals, 1e-300)[:, None, None],
        np.array([guest.parallelism for guest in guests]),
        np.array([guest.think_ns for guest in guests]),
        np.array([guest.mlp for guest in guests]),
    )


@dataclass(frozen=True)
class HostPlacement:
    """Where each guest's pages ought to be, and, if vCPUs ought to move, each vCPU's node.

    ``wanted``: where they would be but for a guard, and for the room; None where nothing was cut.
    ``room``: what is left of it.  ``why``: by guest, why its pages go back, or stay though moves would pay
    (held_back.py).
    """

    pages: list[NodeIndexes]
    vcpu_node: list[Indexes | None] | None = None
    wanted: list[NodeIndexes] | None = None
    room: Room | None = None
    why: Mapping[str, str] = field(default_factory=dict)
