"""What would BWAP do?  Weighted interleaving by bandwidth, tuned online, as a baseline.

1. Canonical weights: w_i in proportion to the least bandwidth from node i to any worker node (eq. 2 for
   one worker, eq. 5 for several).
2. The data-to-worker proximity (DWP) scales them: 0 leaves them, 1 puts all on worker nodes; weights keep
   their proportions within workers and within the others (section III-B1).
3. Starting at 0, DWP goes up by a step as long as the stall rate falls.  A stall rate is the mean of 20
   readings,
   of which the 5 lowest and the 5 highest are dropped (section IV).
4. Co-scheduled: with a high-priority guest, DWP first goes up as long as *its* stall rate falls, then as
   long as the own one does (section III-B3).

5. All this begins when the guest is in a stable phase (section III-B: BWAP-init is called there): as long
   as its memory grew by more than a hundredth within 20 readings, pages stay where they are first touched.

Source: BWAP (IPDPS'20), section III.
Differs: all of a guest's pages count as shared.  A reading is what counters tell at a look, so that the
interval is 20 looks; readings are of the share of time that is waited.  The paper's program says itself
when it is stable.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import (
    ABSENT,
    Bools,
    GuestEvidence,
    HostPlacement,
    HostView,
    NodeIndexes,
)

STEP = 0.1
"""Section IV: 10 %."""
READINGS, DROPPED = 20, 5
STABLE_GROWTH = 1.01
"""A guest is stable if its memory grew by no more than this factor within READINGS."""
GOLDEN = 0.6180339887498949


def canonical_weights(bandwidth: Matrix, worker: Bools) -> Matrix:
    """Return each node's weight (eq. 5); ``bandwidth[i, k]`` is what workers on k get from memory on i."""
    least = bandwidth[:, worker].min(axis=1)
    weights: Matrix = least / least.sum()
    return weights


def with_dwp(weights: Matrix, worker: Bools, dwp: float) -> Matrix:
    """Return the weights at a data-to-worker proximity between 0 (as they are) and 1 (workers only)."""
    inside = float(weights[worker].sum())
    if inside == 0.0:
        return weights
    on_workers = inside + dwp * (1 - inside)
    outside = 1 - inside
    scale = np.where(worker, on_workers / inside, (1 - on_workers) / outside if outside else 0.0)
    scaled: Matrix = weights * scale
    return scaled


def bandwidths(system: MemorySystem, worker: Bools) -> Matrix:
    """Return what workers on k get from memory on i if they all ask all nodes alike (section III-A3): [i, k].

    The narrowest resource on the way, shared by the workers that pass it; 0 for nodes without workers.
    """
    count = len(system.nids)
    memory = system.controller > 0
    passing = np.einsum("kjr,j,k->r", system.visits, memory.astype(np.float64), worker.astype(np.float64))
    share = np.divide(system.capacities, passing, out=np.full(len(passing), np.inf), where=passing > 0)
    answer = np.zeros((count, count))
    for cpu in np.flatnonzero(worker):
        for node in np.flatnonzero(memory):
            answer[node, cpu] = share[system.visits[cpu, node] > 0].min()
    return answer


def stall_rate(readings: list[float]) -> float:
    """Return the mean of the middle readings."""
    ordered = sorted(readings)
    middle = ordered[DROPPED:-DROPPED] if len(ordered) > 2 * DROPPED else ordered
    return float(np.mean(middle))


@dataclass(frozen=True)
class Climb:
    """One guest's hill climb: where it is, what it saw, whether it is over."""

    dwp: float = 0.0
    before: float | None = None
    readings: tuple[float, ...] = ()
    stage: int = 2
    done: bool = False


def climbed(climb: Climb, own: float, protected: float | None) -> Climb:
    """Return the climb after one more reading of the own stall rate and the high-priority guest's."""
    if climb.done:
        return climb
    reading = protected if climb.stage == 1 and protected is not None else own
    readings = (*climb.readings, reading)
    if len(readings) < READINGS:
        return replace(climb, readings=readings)
    rate = stall_rate(list(readings))
    if climb.before is None or rate < climb.before:
        if climb.dwp >= 1.0:
            return replace(climb, done=True, readings=())
        return replace(climb, dwp=min(climb.dwp + STEP, 1.0), before=rate, readings=())
    if climb.stage == 1:
        return replace(climb, stage=2, before=None, readings=())
    return replace(climb, done=True, readings=())


def follow_weights(node: NodeIndexes, weights: Matrix) -> NodeIndexes:
    """Return the pages moved, as few as need be, so that nodes hold them in proportion to ``weights``."""
    present = np.flatnonzero(node >= 0)
    counts = np.bincount(node[present], minlength=len(weights))
    wanted = np.floor(weights * len(present) + 0.5).astype(np.int64)
    excess, lack = np.maximum(counts - wanted, 0), np.maximum(wanted - counts, 0)
    plan = node.copy()
    leaving = []
    for index in np.flatnonzero(excess):
        pages = present[node[present] == index]
        leaving.append(pages[np.linspace(0, len(pages) - 1, int(excess[index])).astype(np.intp)])
    pages = np.concatenate(leaving) if leaving else np.zeros(0, np.intp)
    if not len(pages) or not lack.sum():
        return plan
    pages = pages[: int(lack.sum())]
    # In golden-ratio order: no node gets a contiguous piece.
    order = np.argsort((np.arange(1, len(pages) + 1) * GOLDEN) % 1.0)
    plan[pages[order]] = np.repeat(np.arange(len(lack)), lack)[: len(pages)]
    return plan


@dataclass
class BwapPlanner:
    """BWAP at work: places all pages by the weights, then climbs."""

    climbs: dict[str, Climb] = field(default_factory=dict)
    sizes: dict[str, list[int]] = field(default_factory=dict)

    def plan(self, view: HostView) -> HostPlacement:
        """Return where the guests' pages ought to be."""
        stalls = [
            1 - guest.counters.busy_share
            for guest in view.guests
            if guest.slowdown_bound is not None and guest.counters
        ]
        protected = max(stalls) if stalls else None
        return HostPlacement([self._followed(view.system, guest, protected) for guest in view.guests])

    def _stable(self, guest: GuestEvidence) -> bool:
        """Return whether the guest's memory hardly grew lately; once it was stable, it is."""
        if guest.name in self.climbs:
            return True
        sizes = self.sizes.setdefault(guest.name, [])
        sizes.append(int(guest.present.sum()))
        return len(sizes) > READINGS and sizes[-1] <= STABLE_GROWTH * sizes[-1 - READINGS]

    def _followed(self, system: MemorySystem, guest: GuestEvidence, protected: float | None) -> NodeIndexes:
        if not self._stable(guest):
            return guest.node
        first = Climb(stage=1 if protected is not None and guest.slowdown_bound is None else 2)
        climb = self.climbs.get(guest.name, first)
        if guest.counters is not None:
            climb = climbed(climb, 1 - guest.counters.busy_share, protected)
        self.climbs[guest.name] = climb
        table = bandwidths(system, guest.worker)
        weights = with_dwp(canonical_weights(table, guest.worker), guest.worker, climb.dwp)
        node = np.where(guest.node < 0, ABSENT, guest.node).astype(np.int8)
        plan = follow_weights(node, weights)
        return np.where(guest.node < 0, guest.node, plan).astype(np.int8)
