"""Which paths between nodes share a link?  Those that get less while the other one is used.

1. Hosts whose nodes are not all joined have accesses pass by way of nodes between.  Two nodes are far apart
   if a third one is clearly nearer to both: by idle latencies, or by firmware's distances.
2. Each such way is tried: node a reads from b, far apart from it, and node c between them reads from a at the
   same time.  These share no CPU and no controller.  If both get clearly less than alone, they share the link
   of a and c.
3. The control: a reads from another near node instead.  Where that loses as much, or there is none, it is not
   taken for the link.
4. Accesses take shared links only if each pair of nodes that are far apart was shown to have such a way, and
   gets about as much alone as links are wide.

Limits: a link whose directions do not share its bandwidth, as UPI's and xGMI's, shows nothing here, nor does
a way that sockets of several nodes (NPS, SNC) have in common, nor one that CPUs cannot fill.  Each path is
taken for one of its own then.  This was not tried on a host of several sockets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from vmplace.topology.host import HostTopology, NodeLink

Matrix = npt.NDArray[np.float64]
Pair = tuple[int, int]
FARTHER = 0.95
"""A way between two nodes has parts that are shorter than it by so much: measured latencies vary."""
LOST = 0.12
"""Paths that share a link lose this share of what they get alone, and twice what the control loses."""
NARROWER = 0.7
"""A pair of nodes that gets less of the narrowest link is narrow by itself."""
MOST_BETWEEN = 2
"""So many nodes between two others are tried, from either end."""
MOST_CONTESTS = 200
"""A minute of measurements: nodes of larger hosts are taken for joined."""


@dataclass(frozen=True)
class Contest:
    """Two paths (CPU nid, memory nid) that are read at once."""

    one: Pair
    other: Pair


Got = Mapping[Contest, tuple[float, float]]
"""Bytes/s of both paths of each contest."""


def contests(host: HostTopology) -> tuple[Contest, ...]:
    """Return what is to be measured at once: suspected ways and their controls; none if that is too much."""
    suspected = _Suspected(host)
    every = tuple(dict.fromkeys(one for way in suspected.all for one in (way, *suspected.controls(way))))
    return every if len(every) <= MOST_CONTESTS else ()


def shared_links(host: HostTopology, got: Got) -> tuple[NodeLink, ...]:
    """Return the links that paths share, none where measurements do not show each of them."""
    suspected = _Suspected(host)
    shown = {frozenset(way.one) for way in suspected.all if suspected.is_shared(way, got)}
    if not suspected.all or not all(frozenset(way.one) in shown for way in suspected.all):
        return ()
    width = {pair: _mean(host.bandwidths, *pair) for pair in _pairs(host)}
    joined = {pair: wide for pair, wide in width.items() if frozenset(pair) not in shown}
    far = [wide for pair, wide in width.items() if pair not in joined]
    if not joined or not all(joined.values()) or min(far) < NARROWER * min(joined.values()):
        return ()
    return tuple(NodeLink(pair, round(wide)) for pair, wide in joined.items())


class _Suspected:
    """Paths of nodes that are far apart, each beside the first link of a way that it may take: ``all``."""

    def __init__(self, host: HostTopology) -> None:
        self._host, self._ways = host, _ways(host)
        self.all = [Contest((a, b), (c, a)) for (a, b), between in self._ways.items() for c in between]

    def controls(self, way: Contest) -> list[Contest]:
        """Return the same with another memory that is near to the reading node, if there is any."""
        c, a = way.other
        near = (nid for nid in self._host.memory_nids if nid not in (a, c) and (a, nid) not in self._ways)
        return [Contest((a, nid), way.other) for nid in islice(near, 1)]

    def is_shared(self, way: Contest, got: Got) -> bool:
        """Tell whether the path takes the other one's link."""
        lost, controls = self._lost(way, got), [self._lost(one, got) for one in self.controls(way)]
        known = [max(one) for one in controls if one is not None]
        return lost is not None and bool(known) and min(lost) >= max(LOST, *(2 * one for one in known))

    def _lost(self, contest: Contest, got: Got) -> tuple[float, float] | None:
        """Return which share of what it gets alone each path loses, None if it is not known."""
        alone = self._host.bandwidths
        if contest not in got or not {contest.one, contest.other} <= alone.keys():
            return None
        one, other = got[contest]
        return 1 - one / alone[contest.one], 1 - other / alone[contest.other]


def _ways(host: HostTopology) -> dict[Pair, list[int]]:
    """Return the pairs of nodes that are far apart, and which nodes with CPUs are clearly nearer to both.

    CPUs of the first read memory of the other; the nearest to the first come first, MOST_BETWEEN at most.
    """
    far, nids = _distances(host), host.nids
    between = [i for i, node in enumerate(host.nodes) if node.cpus]
    found = {}
    for a in between:
        for b in (j for j, node in enumerate(host.nodes) if node.memory_bytes and j != a):
            nearer = np.maximum(far[a], far[:, b]) < FARTHER * far[a, b]
            some = sorted((far[a, c], nids[c]) for c in between if nearer[c] and c not in (a, b))
            if some:
                found[nids[a], nids[b]] = [nid for _, nid in some[:MOST_BETWEEN]]
    return found


def _distances(host: HostTopology) -> Matrix:
    """Return how far nodes are from each other, in either direction: as measured, else as firmware says."""
    are_measured = all(_mean(host.idle_latencies, a, b) for a, b in _pairs(host))
    known = host.idle_latencies if are_measured else host.distances
    far = np.zeros((len(host.nids), len(host.nids)))
    index = {nid: i for i, nid in enumerate(host.nids)}
    for a, b in _pairs(host):
        far[index[a], index[b]] = far[index[b], index[a]] = _mean(known, a, b)
    return far


def _pairs(host: HostTopology) -> list[Pair]:
    """Return the pairs of nodes, one of which has CPUs: of others nothing is known, or asked."""
    some = {node.nid for node in host.nodes if node.cpus}
    return [(a, b) for a in host.nids for b in host.nids if a < b and {a, b} & some]


def _mean(figures: Mapping[Pair, float], a: int, b: int) -> float:
    """Return the figure of two nodes, the mean of both directions if both are known, 0 if none is."""
    known = [figure for pair in ((a, b), (b, a)) if (figure := figures.get(pair))]
    return sum(known) / len(known) if known else 0.0
