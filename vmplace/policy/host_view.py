"""What does a policy see of all guests, page by page and by node?  What may it answer?

The stock-kernel ladder sees no nodes (``plan.Snapshot``); this is the view of hosts that do: node-rooted
A/D bits, IBS, hint faults, or the full truth of a trace.  Pure data; indexes, not nids, throughout.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.model.memory_system import Demand, MemorySystem
from vmplace.model.metrics import Matrix

Bools = npt.NDArray[np.bool_]
NodeIndexes = npt.NDArray[np.int8]

ABSENT = -1
"""The page is not in memory."""
REPLICATED = -2
"""The page has a read-only copy on every node that has memory and CPUs."""


@dataclass(frozen=True)
class GuestEvidence:
    """What a source showed of one guest with P pages on a host with N nodes.

    ``heat[P, N]`` estimates DRAM accesses per window from each node; a page never seen is zero there, as
    it is for the memory.  ``written[P]``: a write was seen lately.  ``node[P]``: index of the page's
    node, ABSENT or REPLICATED.  ``worker[N]``: vCPUs run on the node.  ``windows[P]``: in how
    many it was seen touched since its last move.  ``read_ratio``: share of reads among the accesses, or
    None if the source sees every written page.  ``parallelism``, ``think_ns``, ``mlp``: as in
    ``Demand``, from counters.
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


@dataclass(frozen=True)
class HostView:
    """All guests of the host at one moment; ``move_ns`` is what moving a page costs its guest."""

    system: MemorySystem
    capacity_pages: Matrix
    guests: tuple[GuestEvidence, ...]
    move_ns: float

    @property
    def memory(self) -> npt.NDArray[np.intp]:
        """Return the indexes of the nodes with memory."""
        return np.flatnonzero(self.system.controller > 0)


def traffic(heat: Matrix, node: NodeIndexes) -> Matrix:
    """Return accesses by (CPU node, memory node); replicas are read locally, absent pages not at all."""
    count = heat.shape[1]
    by_node = np.zeros((count, count))
    for index in range(count):
        by_node[:, index] = heat[node == index].sum(axis=0)
    by_node[np.diag_indices(count)] += heat[node == REPLICATED].sum(axis=0)
    return by_node


def demand(guests: tuple[GuestEvidence, ...], traffics: list[Matrix]) -> Demand:
    """Return what the guests ask of the memory if their accesses were ``traffics``."""
    return Demand(
        np.stack([one / max(one.sum(), 1e-300) for one in traffics]),
        np.array([guest.parallelism for guest in guests]),
        np.array([guest.think_ns for guest in guests]),
        np.array([guest.mlp for guest in guests]),
    )
