"""The memory system of a host that is described by distances, bandwidths and links.

One set of constants for the simulator and for the lab's emulated time, so that one can predict the other.
"""

from collections.abc import Iterable

import numpy as np

from vmplace.model.memory_system import Link, MemorySystem, routed
from vmplace.model.metrics import Matrix

LINE_BYTES = 64
MIB = 1 << 20
LOCAL_LATENCY_NS = 87.0
"""Carrefour's machine A: 200 cycles of 2.3 GHz."""
QUEUE = 1.218
"""Of hosts that nobody described: of an earlier fit to machine A, with dearer hops and shorter queues."""
MLP = 2.5
"""Between PCA (1.75) and Streamcluster (3.38), the two that Carrefour's table 1 tells (published.py)."""


def lines_per_ns(mib_per_s: Matrix) -> Matrix:
    """Return bandwidths as lines of 64 bytes per ns, the model's accesses."""
    return mib_per_s * MIB / LINE_BYTES / 1e9


def described_memory(  # noqa: PLR0913  (what a host file may say)
    nids: tuple[int, ...],
    distances: Matrix,
    bandwidth_mib_per_s: Matrix,
    memory: Matrix,
    *,
    links: Iterable[Link] | None = None,
    local_latency_ns: float = LOCAL_LATENCY_NS,
    queue: float = QUEUE,
) -> MemorySystem:
    """Return the memory system, in ns; matrices are by (CPU node, memory node), ``memory[j]`` 0 = none.

    Without ``links`` each pair of nodes has a path of its own in each direction, as wide as its bandwidth.
    """
    latency_ns = distances / 10 * local_latency_ns
    return measured_memory(nids, latency_ns, bandwidth_mib_per_s, memory, links=links, queue=queue)


def measured_memory(  # noqa: PLR0913  (what a host is)
    nids: tuple[int, ...],
    latency_ns: Matrix,
    bandwidth_mib_per_s: Matrix,
    memory: Matrix,
    *,
    links: Iterable[Link] | None = None,
    queue: float = QUEUE,
) -> MemorySystem:
    """Return the same from latencies in ns, by (CPU node, memory node)."""
    rates = lines_per_ns(bandwidth_mib_per_s)
    controller = np.where(memory > 0, np.diag(rates), 0.0)
    ways = _own_paths(rates) if links is None else tuple(links)
    return routed(nids, latency_ns, controller, ways, queue)


def _own_paths(rates: Matrix) -> tuple[Link, ...]:
    count = len(rates)
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    return tuple(Link((i, j), float(rates[i, j]), directed=True) for i, j in pairs)
