"""The memory system of this host, as far as its bandwidths, latencies and links are known.

1. Bandwidths between nodes are those that were measured (``vmplace calibrate``) or that firmware tells
   (HMAT); the rest is scaled by distance (topology/bandwidth.py).
2. Latencies are those that were measured, if all were; else they follow distances, from that of a local
   access (described_memory.py).
3. How long accesses wait at a busy controller was measured, too; else it is that of one older server.
4. Each pair of nodes has a path of its own, unless measurements show links that paths share
   (topology/shared_links.py).
5. Where no bandwidth is known at all there is no answer.
"""

import numpy as np

from vmplace.model.described_memory import LOCAL_LATENCY_NS, MIB, QUEUE, lines_per_ns, measured_memory
from vmplace.model.memory_system import Link, MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.topology.bandwidth import path_bandwidths
from vmplace.topology.host import HostTopology
from vmplace.topology.routes import Way, route_shares


def host_memory(host: HostTopology) -> MemorySystem | None:
    """Return the host's memory system in ns, nodes in the order of ``host.nids``; None if not known."""
    nids = host.nids
    paths, is_known = path_bandwidths(host, nids, host.memory_nids)
    if not is_known or not host.memory_nids:
        return None
    # Nothing asks for the memory of a node without: any bandwidth of the path to it will do.
    some = max(paths.values())
    return measured_memory(
        nids,
        _latencies(host),
        np.array([[paths.get((a, b), some) for b in nids] for a in nids]) / MIB,
        np.array([node.memory_bytes for node in host.nodes], float),
        links=_links(host),
        queue=QUEUE if host.queue is None else host.queue,
    )


def _latencies(host: HostTopology) -> Matrix:
    """Return the ns from each node's CPUs to each node's memory."""
    nids = host.nids
    asked = [(node.nid, nid) for node in host.nodes if node.cpus for nid in host.memory_nids]
    by_distance = np.array([[host.distances[a, b] for b in nids] for a in nids], float) / 10
    if not asked or not all(pair in host.idle_latencies for pair in asked):
        return by_distance * LOCAL_LATENCY_NS
    # Nothing asks from nodes without CPUs, or for memory that is not there: by distance will do.
    local = min(host.idle_latencies[pair] for pair in asked)
    latencies: Matrix = by_distance * local
    for i, a in enumerate(nids):
        for j, b in enumerate(nids):
            latencies[i, j] = host.idle_latencies.get((a, b), latencies[i, j])
    return latencies


def _links(host: HostTopology) -> list[Link] | None:
    """Return the links that paths share, None if they are not known, or do not lead to all memory now."""
    index = {nid: i for i, nid in enumerate(host.nids)}
    ends = [tuple(index.get(nid, -1) for nid in link.nids) for link in host.links]
    if not ends or -1 in {end for pair in ends for end in pair}:
        return None
    passes = route_shares(len(index), [Way((a, b)) for a, b in ends]).any(axis=2)
    if not (passes | np.eye(len(index), dtype=bool))[:, [index[nid] for nid in host.memory_nids]].all():
        return None
    wide = lines_per_ns(np.array([link.bytes_per_s / MIB for link in host.links]))
    return [Link((a, b), rate) for (a, b), rate in zip(ends, wide.tolist(), strict=True)]
