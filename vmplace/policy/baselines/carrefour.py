"""What would Carrefour do?  The 2013 algorithm with its paper's constants, as a baseline.

1. Gates for the whole host: nothing unless there are more than 50 DRAM accesses per us and some guest's IPC
   is below 0.7.  Replication (per guest): free memory at least 1 - 1/N of the total, at least 95 % reads,
   fewer than 500 page faults per s.  Interleaving: LAR below 40 % and controller imbalance above 35 %.
   Co-location: LAR below 70 %.
2. Per page, from two samples on: one node -> there; several, read only -> copies; else interleave: away from
   a node with P_migrate, its share of the accesses, to the least loaded one.
3. More than five collapses end a page's copies.

Source: Carrefour (ASPLOS'13), section 3.2, figure 4, table 2; 3.3.1 (30,000 pages), 3.3.2 (collapses).
Differs: a guest stands for an application; the IPC is not known, but the share of time that is not waited
away: IPC 0.7 is about a third of what a 2013 core reaches without waiting.  Faults and the period of a
second are counted on the traces' clock.  The 50 accesses per us are of the paper's machine A; other hosts'
are in proportion to what their controllers serve.  Samples (source ibs-hits) always come at the paper's
higher rate; but guests pay for none while the gates are shut, and for the lower rate after a period with
fewer than ten actions (3.3.1).
"""

from dataclasses import dataclass, field

import numpy as np

from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix, imbalance
from vmplace.model.published import CARREFOUR_2013
from vmplace.policy.host_view import (
    ABSENT,
    REPLICATED,
    Bools,
    Counters,
    GuestEvidence,
    HostPlacement,
    HostView,
    NodeIndexes,
)

MIN_MAPTU = 50.0
CLOCK_GHZ = 2.3
"""Of machine A, whose model counts in cycles."""
MAX_IPC, BEST_IPC = 0.7, 2.0
MIN_READ_RATIO = 0.95
MAX_FAULTS_PER_S = 500.0
MAX_LAR_INTERLEAVE, MIN_IMBALANCE = 0.40, 0.35
MAX_LAR_COLOCATE = 0.70
MIN_SAMPLES = 2.0
MAX_COLLAPSES = 5
MAX_PAGES = 30_000
PERIOD_NS = 1e9
FEW_ACTIONS, LOW_RATE = 10, 65 / 260
"""Section 3.3.1: after a period with fewer actions, a sample each 260,000 cycles does, not each 65,000."""


@dataclass(frozen=True)
class Gates:
    """Which mechanisms are on; ``replicate`` per guest."""

    enabled: bool
    interleave: bool
    colocate: bool
    replicate: tuple[bool, ...]


def least_maptu(system: MemorySystem) -> float:
    """Return the DRAM accesses per us below which nothing is done on this host."""
    published = float(CARREFOUR_2013.controller.sum()) * CLOCK_GHZ
    return MIN_MAPTU * float(system.controller.sum()) / published


def gates(
    counters: tuple[Counters, ...],
    free_ratio: float,
    memory: Bools,
    clock_scale: float = 1.0,
    least: float = MIN_MAPTU,
) -> Gates:
    """Return the global decisions of figure 4; ``free_ratio`` is the free share of all memory.

    ``least``: DRAM accesses per us.
    """
    traffic: Matrix = np.sum([one.accesses for one in counters], axis=0)
    total = float(traffic.sum())
    lar = float(np.trace(traffic)) / total if total else 1.0
    uneven = imbalance(traffic.sum(axis=0)[memory]) or 0.0
    nodes = int(memory.sum())
    return Gates(
        enabled=total * 1000 > least and any(BEST_IPC * one.busy_share < MAX_IPC for one in counters),
        interleave=lar < MAX_LAR_INTERLEAVE and uneven > MIN_IMBALANCE,
        colocate=lar < MAX_LAR_COLOCATE,
        replicate=tuple(
            free_ratio >= 1 - 1 / nodes
            and one.read_ratio >= MIN_READ_RATIO
            and one.faults_per_s / clock_scale < MAX_FAULTS_PER_S
            for one in counters
        ),
    )


def page_places(  # noqa: PLR0913  (what the paper's figure 4 names)
    guest: GuestEvidence,
    samples: Matrix,
    on: Gates,
    replicate: bool,
    loads: Matrix,
    chance: np.random.Generator,
) -> NodeIndexes:
    """Return the guest's pages after the page-local decisions.

    ``samples[P, N]``: of the period.  ``loads``: accesses to each node, -1 without memory.
    """
    seen = samples.sum(axis=1)
    candidates = (seen >= MIN_SAMPLES) & (guest.node != ABSENT)
    candidates &= seen >= np.partition(seen, -min(MAX_PAGES, len(seen)))[-min(MAX_PAGES, len(seen))]
    nodes = (samples > 0).sum(axis=1)
    plan = guest.node.copy()
    if on.colocate:
        own = candidates & (nodes == 1) & (loads[samples.argmax(axis=1)] >= 0)
        plan[own] = samples[own].argmax(axis=1)
    shared = candidates & (nodes > 1)
    if replicate:
        copies = shared & ~guest.written
        plan[copies] = REPLICATED
        shared &= ~copies
    if on.interleave:
        share = np.maximum(loads, 0) / max(float(np.maximum(loads, 0).sum()), 1e-300)
        p_migrate = np.where(guest.node >= 0, share[guest.node], 0.0)
        leaves = shared & (guest.node >= 0) & (chance.random(len(plan)) < p_migrate)
        plan[leaves] = _least_loaded(share, loads >= 0, int(leaves.sum()), chance)
    return plan


def _least_loaded(share: Matrix, memory: Bools, count: int, chance: np.random.Generator) -> NodeIndexes:
    """Return a node for each of ``count`` pages with P_node, the opposite of the node's share."""
    weights = np.where(memory, np.maximum(1 - share, 0.0), 0.0)
    return chance.choice(len(share), size=count, p=weights / weights.sum()).astype(np.int8)


@dataclass
class CarrefourPlanner:
    """Carrefour at work: every period of ``clock_scale`` shortened seconds."""

    clock_scale: float = 1.0
    next_ns: float = 0.0
    collapses: dict[str, Matrix] = field(default_factory=dict)
    before: dict[str, NodeIndexes] = field(default_factory=dict)
    samples: dict[str, Matrix] = field(default_factory=dict)
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(2013))
    watch_share: float = 0.0
    """Of the samples that are taken, those that the algorithm would take; its gates need counters alone."""

    def plan(self, view: HostView) -> HostPlacement:
        """Return where the guests' pages ought to be."""
        for guest in view.guests:
            self._count_collapses(guest)
            self._count_samples(guest)
        if view.now_ns < self.next_ns or any(guest.counters is None for guest in view.guests):
            return HostPlacement([guest.node for guest in view.guests])
        self.next_ns = view.now_ns + PERIOD_NS / self.clock_scale
        memory = view.system.controller > 0
        counters = tuple(guest.counters for guest in view.guests if guest.counters is not None)
        free = view.free_pages()[memory].sum() / max(float(view.capacity_pages[memory].sum()), 1.0)
        on = gates(counters, free, memory, self.clock_scale, least_maptu(view.system))
        loads = np.where(memory, np.sum([one.accesses for one in counters], axis=0).sum(axis=0), -1.0)
        plans = []
        for guest, replicate in zip(view.guests, on.replicate, strict=True):
            samples, plan = self.samples.pop(guest.name), guest.node.copy()
            if on.enabled:
                plan = page_places(guest, samples, on, replicate, loads, self.chance)
            vetoed = (self.collapses[guest.name] > MAX_COLLAPSES) & (plan == REPLICATED)
            plan[vetoed] = guest.node[vetoed]
            self.before[guest.name] = plan.copy()
            plans.append(plan)
        changed = sum(int((plan != guest.node).sum()) for plan, guest in zip(plans, view.guests, strict=True))
        self.watch_share = 0.0 if not on.enabled else LOW_RATE if changed < FEW_ACTIONS else 1.0
        return HostPlacement(plans)

    def _count_samples(self, guest: GuestEvidence) -> None:
        """Add what was sampled since the last look to the period's counts."""
        recent = guest.samples_recent if guest.samples_recent is not None else guest.recent
        known = self.samples.setdefault(guest.name, np.zeros_like(guest.heat))
        if recent is not None:
            known += recent

    def _count_collapses(self, guest: GuestEvidence) -> None:
        known = self.collapses.setdefault(guest.name, np.zeros(len(guest.node)))
        before = self.before.get(guest.name)
        if before is not None:
            known += (before == REPLICATED) & (guest.node >= 0)
        self.before[guest.name] = guest.node.copy()
