"""What would a stock Linux host do?  Models of numad and of the kernel's NUMA balancing, as baselines.

numad: every 15 s it looks at guests that use much CPU or memory, picks the fewest nodes with enough free
CPUs and memory (those that hold most of the guest's memory first), binds the guest there and moves all of its
memory.
kernel-balancing: pages are unmapped in turn, less often where most faults are local or of one node (the
period of ``update_task_scan_period``); a page moves to the node of a fault if the fault before came from that
node, too (the two-stage filter of ``should_numa_migrate_memory``).

Source: numad(8), numad.c 0.5; Linux, kernel/sched/fair.c and mm/mempolicy.c (task placement is left out).
Differs: numad's CPU load is the guest's vCPU count; guests that fill the host are left alone, as numad does
when no subset of the nodes is enough.  So are guests that are pinned: libvirt's cpusets refuse numad's
changes, and mixes take longer if it makes them (docs/simulate.md).  Source hints unmaps one page in eight per
look, and all of these count; other sources show all pages, of which SCAN_SHARE count per look.  The scan's
period follows the faults of a guest, not of each of its threads.
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
ENOUGH, SLOWEST = 7, 60.0
"""Tenths of the faults that are local or private from which on the kernel scans less often, and its longest
period over its shortest (NUMA_PERIOD_THRESHOLD, numa_balancing_scan_period_min_ms and _max_ms)."""


def numad_nodes(view: HostView, guest: GuestEvidence, free_cpus: Matrix, free_pages: Matrix) -> Indexes:
    """Return the fewest nodes that can take the guest's vCPUs and pages, the ones with most of it first."""
    held = _held(guest, guest.node, len(free_cpus))
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
        memory = [_held(guest, guest.node, len(free_pages)).sum() for guest in view.guests]
        order = np.argsort([-one for one in memory], kind="stable").tolist()
        for index in order:
            guest = view.guests[index]
            if guest.vcpu_node is None or guest.may_tie is None:
                continue
            nodes = numad_nodes(view, guest, free_cpus, free_pages)
            if len(nodes) < int((view.cpus > 0).sum()):
                vcpus[index] = spread = _spread(len(guest.vcpu_node), nodes, free_cpus)
                plans[index] = _gathered(guest, nodes, view.system.controller > 0)
                free_cpus -= np.bincount(spread, minlength=len(free_cpus))
            np.maximum(free_cpus, 0, out=free_cpus)
            free_pages -= _held(guest, plans[index], len(free_pages))
        return HostPlacement(plans, vcpus)


def _held(guest: GuestEvidence, node: NodeIndexes, nodes: int) -> Matrix:
    """Return how many pages of 4 KiB the guest has on each node."""
    here = np.flatnonzero(node >= 0)
    held: Matrix = np.bincount(node[here], weights=guest.sizes_of(here), minlength=nodes).astype(np.float64)
    return held


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
class Scan:
    """How often a guest's pages are scanned: ``slowness`` times the kernel's shortest period, 1 at least.

    ``passed``: the share of the pass that is done; faults of this pass, those on the node that has the page,
    and those of the node that faulted on the page before.
    """

    slowness: float = 1.0
    passed: float = 0.0
    faults: int = 0
    local: int = 0
    private: int = 0

    def go_on(self, share: float) -> None:
        """Scan so much of the pages; after each pass the period follows (update_task_scan_period)."""
        self.passed += share
        if self.passed < 1.0:
            return
        local, private = (10 * one // max(self.faults, 1) for one in (self.local, self.private))
        if not self.faults:
            self.slowness *= 2
        elif max(local, private) >= ENOUGH:
            first = private if private >= ENOUGH else local
            self.slowness *= 1 + max(first - ENOUGH, 1) / 10
        else:
            self.slowness *= 1 - (ENOUGH - max(local, private)) / 10
        self.slowness = min(max(self.slowness, 1.0), SLOWEST)
        self.passed, self.faults, self.local, self.private = 0.0, 0, 0, 0


@dataclass
class BalancingPlanner:
    """The kernel's NUMA balancing at work: who faulted on each page last, and how far the scan is."""

    last: dict[str, NodeIndexes] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    scans: dict[str, Scan] = field(default_factory=dict)
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    @property
    def watch_share(self) -> float:
        """Return the share of the pages that are shown which the kernel would have unmapped by now."""
        slow = [1 / one.slowness for one in self.scans.values()]
        return float(np.mean(slow)) if slow else 1.0

    def plan(self, view: HostView) -> HostPlacement:
        """Move the pages on which a node faulted twice in a row."""
        return HostPlacement([self._pages(view, guest) for guest in view.guests])

    def _pages(self, view: HostView, guest: GuestEvidence) -> NodeIndexes:
        if guest.recent is None:
            return guest.node
        last = self.last.setdefault(guest.name, np.full(len(guest.node), ABSENT, np.int8))
        scan = self.scans.setdefault(guest.name, Scan())
        pages = self._scanned(guest)
        pages = pages[self.chance.random(len(pages)) * scan.slowness < 1.0]
        heat = guest.recent[pages]
        total = heat.sum(axis=1)
        draw = self.chance.random(len(pages)) * total
        fault = np.minimum((np.cumsum(heat, axis=1) <= draw[:, None]).sum(axis=1), heat.shape[1] - 1)
        faulted = (total > 0) & (guest.node[pages] >= 0)
        same = faulted & (last[pages] == fault)
        twice = same & (view.system.controller[fault] > 0)
        plan = guest.node.copy()
        plan[pages[twice]] = fault[twice]
        last[pages[faulted]] = fault[faulted]
        scan.faults += int(faulted.sum())
        scan.local += int((faulted & (guest.node[pages] == fault)).sum())
        scan.private += int(same.sum())
        scan.go_on(SCAN_SHARE / scan.slowness)
        return plan

    def _scanned(self, guest: GuestEvidence) -> Indexes:
        """Return the pages whose faults count now: those that the source unmapped, or the next in turn."""
        if guest.samples_recent is not None:
            return np.flatnonzero(row_sums(guest.samples_recent))
        start, length = self.at.get(guest.name, 0), max(int(len(guest.node) * SCAN_SHARE), 1)
        self.at[guest.name] = (start + length) % len(guest.node)
        return (start + np.arange(length)) % len(guest.node)
