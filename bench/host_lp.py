"""How should the memory of all guests be weighted over the nodes?  One linear program for the whole host.

1. A guest's memory is a few streams: pages that all its vCPUs write (shared), pages of one node (private),
   pages that are only read.  A stream has a demand from each node, pages, and weights where it lies now.
2. Weights are sought that make the worst utilisation of controllers and links least; then latency, then
   pages moved.  A protected guest's latency weighs more.
3. Nodes hold only so many pages; copies of what is only read take room from a budget; no more pages move
   than the churn allows; what cannot move keeps its weights.

Source: BWAP (IPDPS'20), section III-A, eq. 5, is the case of one guest, one shared stream, equal demand from
all workers, and no shared links.
Limits: a utilisation is no latency, so ``policy/descent.py`` places better; ``bench_weighers`` shows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linprog

from vmplace.errors import VmplaceError
from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.policy.descent import PROTECTED_IMPORTANCE

LATENCY_WEIGHT = 1e-2
MOVE_WEIGHT = 1e-4


@dataclass(frozen=True)
class Stream:
    """Pages of one guest that are alike.

    ``demand[N]``: accesses per unit of time from each node.  ``weights[N]`` (sum 1): where the pages are.
    """

    guest: str
    demand: Matrix
    npages: float
    weights: Matrix
    replicable: bool = False
    movable: bool = True
    protected: bool = False


@dataclass(frozen=True)
class Limits:
    """Pages that each node may hold, that copies may take in all, and that may move at once."""

    capacity_pages: Matrix
    replica_pages: float = np.inf
    churn_pages: float = np.inf


@dataclass(frozen=True)
class HostWeights:
    """Per stream the weights of the nodes [S, N] and the share with copies [S]; the worst utilisation."""

    weights: Matrix
    replicated: Matrix
    worst_utilisation: float


def plan_weights(system: MemorySystem, streams: Sequence[Stream], limits: Limits) -> HostWeights:
    """Return the best weights; raises VmplaceError if nothing fits."""
    program = _program(system, streams, limits)
    solution = linprog(
        program.cost,
        A_ub=program.at_most,
        b_ub=program.bounds,
        A_eq=program.sums,
        b_eq=np.ones(len(streams)),
        bounds=program.ranges,
        method="highs",
        # Nothing here is redundant: to look for it takes as long as to solve.
        options={"presolve": False},
    )
    if solution.x is None:
        raise VmplaceError(f"no placement fits: {solution.message}")
    count, nodes = len(streams), len(system.nids)
    weights = solution.x[: count * nodes].reshape(count, nodes)
    return HostWeights(weights, solution.x[count * nodes : count * (nodes + 1)], float(solution.x[-1]))


@dataclass(frozen=True)
class _Program:
    """Minimise ``cost`` x; variables: weights [S, N], replicated shares [S], arrivals [S, N], utilisation."""

    cost: Matrix
    at_most: object
    bounds: Matrix
    sums: object
    ranges: npt.NDArray[np.float64]


def _program(system: MemorySystem, streams: Sequence[Stream], limits: Limits) -> _Program:
    count, nodes = len(streams), len(system.nids)
    demand = np.stack([one.demand for one in streams])
    pages = np.array([one.npages for one in streams])
    copies = np.array([max(int((one.demand > 0).sum()), 1) for one in streams])
    # What one unit of weight asks of each resource: [S, N, R]; of replicated share: [S, R].
    asks = np.einsum("sk,knr->snr", demand, system.visits)
    asks_local = np.einsum("sk,kkr->sr", demand, system.visits)
    used = system.capacities > 0
    scale = np.where(used, 1 / np.maximum(system.capacities, 1e-300), 0.0)
    load = sparse.hstack(
        [
            sparse.csr_array((asks * scale).reshape(count * nodes, -1).T[used]),
            sparse.csr_array((asks_local * scale).T[used]),
            sparse.csr_array((int(used.sum()), count * nodes)),
            sparse.csr_array(-np.ones((int(used.sum()), 1))),
        ]
    )
    place = sparse.kron(sparse.csr_array(pages[None, :]), sparse.eye_array(nodes))
    held = sparse.hstack(
        [
            place,
            sparse.csr_array((pages[:, None] * (demand > 0)).T),
            sparse.csr_array((nodes, count * nodes)),
            sparse.csr_array((nodes, 1)),
        ]
    )
    # Arrivals are what the weights exceed the present ones by.
    arrive = sparse.hstack(
        [
            sparse.eye_array(count * nodes),
            sparse.csr_array((count * nodes, count)),
            -sparse.eye_array(count * nodes),
            sparse.csr_array((count * nodes, 1)),
        ]
    )
    extra = pages * (copies - 1)
    none = np.zeros(count * nodes)
    rows, ends = [load, held, arrive], [np.zeros(int(used.sum())), limits.capacity_pages]
    ends.append(np.concatenate([one.weights for one in streams]))
    if np.isfinite(limits.replica_pages):
        rows.append(sparse.csr_array(np.concatenate([none, extra, none, [0.0]])[None, :]))
        ends.append(np.array([limits.replica_pages]))
    moved = np.concatenate([none, extra, np.repeat(pages, nodes), [0.0]])
    if np.isfinite(limits.churn_pages):
        rows.append(sparse.csr_array(moved[None, :]))
        ends.append(np.array([limits.churn_pages]))
    sums = sparse.hstack(
        [
            sparse.kron(sparse.eye_array(count), np.ones((1, nodes))),
            sparse.eye_array(count),
            sparse.csr_array((count, count * nodes + 1)),
        ]
    )
    return _Program(
        _cost(system, streams, demand, moved),
        sparse.vstack(rows).tocsr(),
        np.concatenate(ends),
        sums.tocsr(),
        _ranges(system, streams),
    )


def _cost(system: MemorySystem, streams: Sequence[Stream], demand: Matrix, moved: Matrix) -> Matrix:
    """Return the objective: utilisation, then latency relative to all-local, then pages moved."""
    count, nodes = demand.shape
    importance = np.array([PROTECTED_IMPORTANCE if one.protected else 1.0 for one in streams])
    unit = max(float((demand @ np.diag(system.latency)).sum()), 1e-300)
    latency = (demand @ system.latency) * importance[:, None] / unit
    local = (demand @ np.diag(system.latency)) * importance / unit
    cost = np.concatenate(
        [latency.ravel() * LATENCY_WEIGHT, local * LATENCY_WEIGHT, np.zeros(count * nodes), [1.0]]
    )
    answer: Matrix = cost + MOVE_WEIGHT * moved / max(sum(one.npages for one in streams), 1.0)
    return answer


def _ranges(system: MemorySystem, streams: Sequence[Stream]) -> npt.NDArray[np.float64]:
    memory = system.controller > 0
    ranges = []
    for one in streams:
        for node, weight in enumerate(one.weights):
            ranges.append((0.0, float(memory[node])) if one.movable else (weight, weight))
    for one in streams:
        near = bool(memory[one.demand > 0].all())
        ranges.append((0.0, float(one.replicable and one.movable and near)))
    ranges += [(0.0, np.inf)] * (len(streams) * len(memory) + 1)
    return np.array(ranges)
