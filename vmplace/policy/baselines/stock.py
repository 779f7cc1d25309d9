"""What would a stock Linux host do?  Models of numad and of the kernel's NUMA balancing, as baselines.

numad: every 15 s it looks at guests that use much CPU or memory, picks the fewest nodes with enough free
CPUs and
memory (those that hold most of the guest's memory first), binds the guest there and moves all of its memory.
kernel-balancing: pages are unmapped in turn; a page moves to the node of a fault if the fault before came
from that node, too (the two-stage filter of ``should_numa_migrate_memory``).

Source: numad(8), numad.c 0.5; Linux, kernel/sched/fair.c and mm/mempolicy.c (task placement is left out).
Differs: numad's CPU load is the guest's vCPU count; guests that fill the host are left alone, as numad
does when no subset of the nodes is enough.  Source hints unmaps one page in eight per look, and all of
these count; other sources show all pages, of which SCAN_SHARE count per look.
"""

from dataclasses import dataclass, field

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import (
    ABSENT,
    Bools,
    GuestEvidence,
    HostPlacement,
    HostView,
    Indexes,
    NodeIndexes,
    row_sums,
)

NUMAD_PERIOD_NS = 15e9
TARGET_UTILISATION = 0.85
"""numad's default (-u): it asks for so many CPUs and so much memory that they would be used to 85 %."""
SCAN_SHARE = 1 / 8


def numad_nodes(view: HostView, guest: GuestEvidence, free_cpus: Matrix, free_pages: Matrix) -> Indexes:
    """Return the fewest nodes that can take the guest's vCPUs and pages, the ones with most of it first."""
    held = np.bincount(guest.node[guest.node >= 0], minlength=len(free_cpus)).astype(np.float64)
    cpus = (0 if guest.vcpu_node is None else len(guest.vcpu_node)) / TARGET_UTILISATION
    pages = held.sum() / TARGET_UTILISATION
    order = np.argsort(-(free_cpus * (free_pages + held + 1)), kind="stable")
    for count in range(1, len(order) + 1):
        nodes = order[:count]
        if free_cpus[nodes].sum() >= cpus and free_pages[nodes].sum() >= pages:
            return np.sort(nodes)
    return np.flatnonzero((free_cpus > 0) | (free_pages > 0))


@dataclass
class NumadPlanner:
    """numad at work."""

    clock_scale: float = 1.0
    next_ns: float = 0.0

    def plan(self, view: HostView) -> HostPlacement:
        """Bind each guest to few nodes and bring its memory there."""
        plans = [guest.node.copy() for guest in view.guests]
        vcpus: list[Indexes | None] = [None] * len(view.guests)
        if view.now_ns < self.next_ns or view.cpus is None:
            return HostPlacement(plans)
        self.next_ns = view.now_ns + NUMAD_PERIOD_NS / self.clock_scale
        free_cpus, free_pages = view.cpus.copy(), view.capacity_pages.copy()
        order = sorted(range(len(view.guests)), key=lambda i: -int((view.guests[i].node >= 0).sum()))
        for index in order:
            guest = view.guests[index]
            if guest.vcpu_node is None:
                continue
            nodes = numad_nodes(view, guest, free_cpus, free_pages)
            if len(nodes) < int((view.cpus > 0).sum()):
                vcpus[index] = spread = _spread(len(guest.vcpu_node), nodes, free_cpus)
                plans[index] = _gathered(guest, nodes, view.system.controller > 0)
                free_cpus -= np.bincount(spread, minlength=len(free_cpus))
            np.maximum(free_cpus, 0, out=free_cpus)
            free_pages -= np.bincount(plans[index][plans[index] >= 0], minlength=len(free_pages))
        return HostPlacement(plans, vcpus)


def _spread(count: int, nodes: Indexes, free_cpus: Matrix) -> Indexes:
    """Return nodes for ``count`` vCPUs, in order, as far as CPUs go."""
    slots = np.repeat(nodes, np.maximum(free_cpus[nodes], 0).astype(np.int64))
    return np.sort(np.resize(slots if len(slots) else nodes, count))


def _gathered(guest: GuestEvidence, nodes: Indexes, memory: Bools) -> NodeIndexes:
    """Return the pages outside ``nodes`` distributed over them."""
    homes = nodes[memory[nodes]]
    if not len(homes):
        return guest.node.copy()
    outside = np.flatnonzero((guest.node >= 0) & ~np.isin(guest.node, homes))
    plan = guest.node.copy()
    plan[outside] = homes[np.arange(len(outside)) % len(homes)]
    return plan


@dataclass
class BalancingPlanner:
    """The kernel's NUMA balancing at work: who faulted on each page last, and how far the scan is."""

    last: dict[str, NodeIndexes] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def plan(self, view: HostView) -> HostPlacement:
        """Move the pages on which a node faulted twice in a row."""
        return HostPlacement([self._pages(view, guest) for guest in view.guests])

    def _pages(self, view: HostView, guest: GuestEvidence) -> NodeIndexes:
        if guest.recent is None:
            return guest.node
        last = self.last.setdefault(guest.name, np.full(len(guest.node), ABSENT, np.int8))
        pages = self._scanned(guest)
        heat = guest.recent[pages]
        total = heat.sum(axis=1)
        draw = self.chance.random(len(pages)) * total
        fault = np.minimum((np.cumsum(heat, axis=1) <= draw[:, None]).sum(axis=1), heat.shape[1] - 1)
        faulted = (total > 0) & (guest.node[pages] >= 0)
        twice = faulted & (last[pages] == fault) & (view.system.controller[fault] > 0)
        plan = guest.node.copy()
        plan[pages[twice]] = fault[twice]
        last[pages[faulted]] = fault[faulted]
        return plan

    def _scanned(self, guest: GuestEvidence) -> Indexes:
        """Return the pages whose faults count now: those that the source unmapped, or the next in turn."""
        if guest.samples_recent is not None:
            return np.flatnonzero(row_sums(guest.samples_recent))
        start, length = self.at.get(guest.name, 0), max(int(len(guest.node) * SCAN_SHARE), 1)
        self.at[guest.name] = (start + length) % len(guest.node)
        return (start + np.arange(length)) % len(guest.node)
