"""What does the model expect of vCPUs that are tied to a node, each group of them by itself?

1. Accesses are taken to come from all nodes on which the vCPUs may run, and to go where the guest's hot pages
   are (model/traffic.py): now, and once these vCPUs are tied.  Memory and other vCPUs stay as they are.
2. What it saves is the guest's accesses times what each takes less beside the other guests, in the time for
   which what was seen is expected to go on.
3. The price: each vCPU begins with cold caches once, for as long as the kernel reckons (``COLD_NS``).

Limits: memory that follows is weighed where it is planned (forecast.py); vCPUs are taken to be on all their
nodes alike; cores that they share are not seen.
"""

from dataclasses import replace

import numpy as np

from vmplace.model.described_memory import MLP
from vmplace.model.heat_horizon import HORIZON_S
from vmplace.model.memory_system import Demand, MemorySystem, beside, solved
from vmplace.model.metrics import Matrix
from vmplace.model.traffic import estimated_traffic
from vmplace.policy.corner_mix import asked_of
from vmplace.policy.expected_accesses import LEAST_CPUS, THINK_NS
from vmplace.policy.forecast import UNCOUNTED, UNSEEN
from vmplace.policy.options import COLD_NS, VCPUS, Option, Weighing
from vmplace.policy.plan import GuestView, Snapshot, VcpuMove
from vmplace.policy.planner_view import memory_of
from vmplace.policy.vcpu_ties import with_vcpus


def weighed_vcpus(snapshot: Snapshot, moves: tuple[VcpuMove, ...]) -> tuple[VcpuMove, ...]:
    """Return the moves with what is expected of each."""
    if not moves:
        return moves
    traffics = {view.topology.name: _traffic(snapshot, view) for view in snapshot.guests}
    views = [view for view in snapshot.guests if traffics[view.topology.name].sum() > 0]
    names = [view.topology.name for view in views]
    known = [move for move in moves if move.guest in names]
    weighings = _weighings(snapshot, views, [traffics[name] for name in names], known) if known else {}
    return tuple(
        replace(move, weighing=weighings.get(id(move), Weighing(move.guest, unknown=UNSEEN)))
        for move in moves
    )


def _traffic(snapshot: Snapshot, view: GuestView, *moves: VcpuMove) -> Matrix:
    """Return what the guest's hot pages imply once the moves are done, by the host's nodes."""
    nodes = len(snapshot.host.nids)
    if view.pages is None or view.pages.nids != snapshot.host.nids:
        return np.zeros((nodes, nodes))
    (tied,) = with_vcpus(replace(snapshot, guests=(view,)), moves).guests
    return estimated_traffic(snapshot.host, tied.topology, view.pages).accesses


def _weighings(
    snapshot: Snapshot, views: list[GuestView], traffics: list[Matrix], moves: list[VcpuMove]
) -> dict[int, Weighing]:
    """Return what is expected of each move, by its id."""
    system = memory_of(snapshot.host)
    needs = _demand(system, views, np.stack(traffics))
    pairs = len(system.nids) ** 2
    asked = needs.shares.reshape(-1, pairs) @ system.visits.reshape(pairs, -1)
    asked *= solved(system, needs).rates[:, None]
    number = np.array([[view.topology.name for view in views].index(move.guest) for move in moves])
    others = np.maximum(asked.sum(axis=0) - asked, 0.0)[number]
    after = _shares(
        np.stack([_traffic(snapshot, views[at], move) for at, move in zip(number, moves, strict=True)])
    )
    ways = [
        Demand(shares, needs.parallelism[number], needs.think[number], needs.mlp[number])
        for shares in (needs.shares[number], after)
    ]
    now, then = (1 / beside(system, way, others) for way in ways)
    return {
        id(move): _weighing(snapshot, views[at], move, float(before), float(later))
        for move, at, before, later in zip(moves, number, now, then, strict=True)
    }


def _demand(system: MemorySystem, views: list[GuestView], traffics: Matrix) -> Demand:
    """Return what the guests ask for, with the work between accesses that explains counted rates."""
    shares = _shares(traffics)
    parallelism = np.array([_parallelism(view) for view in views])
    counted = np.array([np.nan if view.dram_per_us is None else view.dram_per_us / 1000 for view in views])
    rates = np.where(np.isnan(counted), parallelism / (2 * THINK_NS), np.maximum(counted, 1e-6))
    latency = system.latency + system.visits @ system.waits(asked_of(system, rates, shares))
    worked = parallelism / rates - np.einsum("gkj,kj->g", shares, latency) / MLP
    think = np.where(np.isnan(counted), THINK_NS, np.maximum(worked, 0.1))
    return Demand(shares, parallelism, think, np.full(len(views), MLP))


def _shares(traffics: Matrix) -> Matrix:
    shares: Matrix = traffics / traffics.sum(axis=(1, 2), keepdims=True)
    return shares


def _parallelism(view: GuestView) -> float:
    vcpus = max(len(view.topology.vcpus), 1)
    return float(vcpus if view.cpus is None else np.clip(view.cpus, LEAST_CPUS, vcpus))


def _weighing(
    snapshot: Snapshot, view: GuestView, move: VcpuMove, before_ns: float, after_ns: float
) -> Weighing:
    """Return what is saved; where nothing counts accesses, by the touched pages alone, each once."""
    ahead_s, accesses = None, float(_traffic(snapshot, view).sum())
    if view.dram_per_us is not None:
        windows = view.pages.windows if view.pages else 0
        ahead_s = min(max(view.known_s, windows * snapshot.window_s), HORIZON_S)
        accesses = view.dram_per_us * 1e6 * ahead_s
    share = None if ahead_s is None else 1 - after_ns / before_ns
    price_ns = COLD_NS * len(move.cpus) / max(len(view.topology.vcpus), 1)
    chosen = Option(VCPUS, 0, 0, 0, price_ns, accesses * (before_ns - after_ns), share, nid=move.nid)
    return Weighing(move.guest, chosen, ahead_s=ahead_s, unknown="" if share is not None else UNCOUNTED)
