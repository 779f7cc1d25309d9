"""In which proportion ought a guest's memory lie on the nodes, so that bandwidth is used best?

1. A node is worth the bandwidth of the weakest path from any worker node to it.
2. A node's share is its worth over the sum of all worths.

Source: BWAP (IPDPS 2020), section III-A, equations 2 and 5.  As there, the paths are measured while all
workers read at once (vmplace calibrate).  Where that was not done for these workers, the paths of an idle
host stand in; firmware (HMAT) tells only those of each node's best initiators.  The rest is scaled from
these by distance, and without any figure the inverse of the distance stands for the bandwidth.

Limits: distances say little of links that several nodes share.
"""

from collections.abc import Collection, Mapping

from vmplace.topology.host import HostTopology

LOCAL_DISTANCE = 10


def bandwidth_weights(
    host: HostTopology, worker_nids: Collection[int], mem_nids: Collection[int] | None = None
) -> dict[int, float]:
    """Return the share of each memory node (sum 1) for a guest that runs on ``worker_nids``.

    ``mem_nids`` restricts the nodes that take part; the default is every node with memory.  Raises
    ValueError without a worker or without a memory node, KeyError for a nid the host does not have.
    """
    nids = [nid for nid in host.memory_nids if mem_nids is None or nid in mem_nids]
    if not worker_nids or not nids:
        raise ValueError("weights need at least one worker node and one node with memory")
    together: Mapping[tuple[int, int], float] = host.worker_bandwidths.get(tuple(sorted(worker_nids)), {})
    if all((worker, nid) in together for worker in worker_nids for nid in nids):
        paths = together
    else:
        paths, _ = path_bandwidths(host, worker_nids, nids)
    worths = {nid: min(paths[worker, nid] for worker in worker_nids) for nid in nids}
    total = sum(worths.values())
    return {nid: worth / total for nid, worth in worths.items()}


def path_bandwidths(
    host: HostTopology, cpu_nids: Collection[int], mem_nids: Collection[int]
) -> tuple[Mapping[tuple[int, int], float], bool]:
    """Return comparable bandwidths of all pairs while the others rest, and whether they are bytes/s.

    Known, or scaled by distance from what is known of the memory node; where nothing is known of one of them,
    all are worths by distance alone: a mixture would compare nothing.
    """
    anchors = {nid: _anchor(host, nid) for nid in mem_nids}
    complete = all(anchor is not None for anchor in anchors.values())
    paths = {}
    for worker in cpu_nids:
        for nid in mem_nids:
            known = host.bandwidths.get((worker, nid)) if complete else None
            # The worth of one byte/s at distance 1.
            unit = anchors[nid] if complete else LOCAL_DISTANCE
            paths[worker, nid] = known or (unit or 0) / host.distances[worker, nid]
    return paths, complete


def _anchor(host: HostTopology, mem_nid: int) -> float | None:
    """Return bandwidth x distance of the node's best known path, or None if no path is known."""
    return max(
        (
            bandwidth * host.distances[cpu_nid, to_nid]
            for (cpu_nid, to_nid), bandwidth in host.bandwidths.items()
            if to_nid == mem_nid
        ),
        default=None,
    )
