"""The memory system of this host, as far as its bandwidths and distances are known.

1. Bandwidths between nodes are those that were measured (``vmplace calibrate``) or that firmware tells
   (HMAT); the rest is scaled by distance (topology/bandwidth.py).
2. Latencies follow distances, from that of a local access (described_memory.py).  Each pair of nodes has a
   path of its own, as nobody tells which links several share.
3. Where no bandwidth is known at all there is no answer.
"""

import numpy as np

from vmplace.model.described_memory import MIB, described_memory
from vmplace.model.memory_system import MemorySystem
from vmplace.topology.bandwidth import path_bandwidths
from vmplace.topology.host import HostTopology


def host_memory(host: HostTopology) -> MemorySystem | None:
    """Return the host's memory system in ns, nodes in the order of ``host.nids``; None if not known."""
    nids = host.nids
    paths, is_known = path_bandwidths(host, nids, host.memory_nids)
    if not is_known or not host.memory_nids:
        return None
    # Nothing asks for the memory of a node without: any bandwidth of the path to it will do.
    some = max(paths.values())
    return described_memory(
        nids,
        np.array([[host.distances[a, b] for b in nids] for a in nids], float),
        np.array([[paths.get((a, b), some) for b in nids] for a in nids]) / MIB,
        np.array([node.memory_bytes for node in host.nodes], float),
    )
