"""Which paths between nodes share a link?  Those that all together got less than what each got alone.

1. A path alone shows how wide it is.  If no path shares anything with another, then nothing explains that all
   at once get less than controllers serve and paths are wide.
2. Hosts whose nodes are not all joined have accesses pass by way of nodes between.  These paths are farther
   than both parts of the way: nodes that are not far from each other by way of any other are joined.
3. Where links so found are as busy as they can be with what was measured, and no path of its own was near
   that, accesses take these links.  Else each path is taken for one of its own, as if nothing were measured.

Limits: links are taken to be as wide in either direction, and their both directions to share that, as
HyperTransport's; sockets whose nodes share one way to another socket are not found.  On hosts of several
sockets this was not tried: it rests on the model (memory_system.py) alone.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from vmplace.topology.host import HostTopology, NodeLink
from vmplace.topology.routes import Way, route_shares

Matrix = npt.NDArray[np.float64]
FARTHER = 0.95
"""A way between two nodes has parts that are shorter than it by so much: measured latencies vary."""
BUSY = 0.75
"""What limits all that read at once is used so far, at least: others wait for it while one is served."""
BUSIEST = 1.2
"""No link carries more than this, even if it was measured too narrow alone: accesses do not take it."""


def shared_links(host: HostTopology) -> tuple[NodeLink, ...]:
    """Return the links that paths share, none where measurements do not show any."""
    got = _got_at_once(host)
    if got is None or _busiest_alone(host, got) >= BUSY:
        return ()
    ends = _joined(host)
    far_apart = len(ends) < len(host.nids) * (len(host.nids) - 1) // 2
    width = {(a, b): _mean(host.bandwidths, a, b) for a, b in ends} if far_apart else {}
    if not width or not all(width.values()):
        return ()
    busiest = _busiest_link(host, got, width)
    if busiest is None or not BUSY <= busiest <= BUSIEST:
        return ()
    return tuple(NodeLink(pair, round(wide)) for pair, wide in width.items())


def _got_at_once(host: HostTopology) -> dict[int, float] | None:
    """Return the bytes/s that each node with CPUs got from each node's memory while all read from all.

    A CPU read the same from each node in turn, so that it spent most of its time on the slowest.
    """
    cpu_nids = tuple(node.nid for node in host.nodes if node.cpus)
    together: Mapping[tuple[int, int], float] = host.worker_bandwidths.get(cpu_nids, {})
    pairs = [(cpu_nid, nid) for cpu_nid in cpu_nids for nid in host.memory_nids]
    if not pairs or not all(together.get(pair) and host.bandwidths.get(pair) for pair in pairs):
        return None
    return {cpu_nid: 1 / sum(1 / together[cpu_nid, nid] for nid in host.memory_nids) for cpu_nid in cpu_nids}


def _busiest_alone(host: HostTopology, got: Mapping[int, float]) -> float:
    """Return how busy the busiest of controllers and paths was, if each pair of nodes has its own."""
    served = sum(got.values())
    controllers = [served / max(host.bandwidths[one, nid] for one in got) for nid in host.memory_nids]
    paths = [got[a] / host.bandwidths[a, b] for a in got for b in host.memory_nids if a != b]
    return max(controllers + paths)


def _joined(host: HostTopology) -> list[tuple[int, int]]:
    """Return the pairs of nodes that no third one lies between."""
    nids, far = host.nids, _distances(host)
    between = [i for i, node in enumerate(host.nodes) if node.cpus]
    return [
        (nids[a], nids[b])
        for a in range(len(nids))
        for b in range(a + 1, len(nids))
        if not any(max(far[a, c], far[c, b]) < FARTHER * far[a, b] for c in between if c not in (a, b))
    ]


def _distances(host: HostTopology) -> Matrix:
    """Return how far nodes are from each other, in either direction: as measured, or as firmware says."""
    far = np.array([[0 if a == b else _mean(host.latencies, a, b) for b in host.nids] for a in host.nids])
    if ((far == 0) == np.eye(len(far), dtype=bool)).all():
        return far
    return np.array([[0 if a == b else _mean(host.distances, a, b) for b in host.nids] for a in host.nids])


def _mean(figures: Mapping[tuple[int, int], float], a: int, b: int) -> float:
    """Return the figure of two nodes, the mean of both directions if both are known, 0 if none is."""
    known = [figure for pair in ((a, b), (b, a)) if (figure := figures.get(pair))]
    return sum(known) / len(known) if known else 0.0


def _busiest_link(
    host: HostTopology, got: Mapping[int, float], width: Mapping[tuple[int, int], float]
) -> float | None:
    """Return how busy the busiest of these links was, None where they do not lead everywhere."""
    index = {nid: i for i, nid in enumerate(host.nids)}
    passes = route_shares(len(index), [Way((index[a], index[b])) for a, b in width])
    asked = np.zeros(passes.shape[:2])
    for nid, rate in got.items():
        asked[index[nid], [index[one] for one in host.memory_nids if one != nid]] = rate
    if (passes.sum(axis=2) + (asked == 0) == 0).any():
        return None
    return float((np.einsum("kj,kjl->l", asked, passes) / np.array(list(width.values()))).max())
