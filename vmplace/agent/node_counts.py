"""Which nodes' vCPUs made a guest's accesses to memory lately, by counters, over HISTORY_WINDOWS?

1. Events are of threads, so they tell nodes of vCPUs that may run on one node each.  Where one may run on
   several, nobody knows.
2. Not all vCPUs of a large guest are counted: those of a node stand for the others there.  A window in which
   none of a node was counted tells nothing, nor does one with few accesses.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vmplace.model.pages import HISTORY_WINDOWS
from vmplace.policy.plan import NodeShares
from vmplace.sampling.guest_cost import LEAST_ACCESSES, ByCpus
from vmplace.topology.host import HostTopology

Counts = npt.NDArray[np.float64]


@dataclass
class NodeCounts:
    """What was counted in the last windows, the newest last; None: nothing in that one."""

    windows: deque[tuple[ByCpus, float] | None] = field(default_factory=lambda: deque(maxlen=HISTORY_WINDOWS))

    def add(self, by_cpus: ByCpus | None, window_s: float) -> None:
        """Take in a window; None: nobody counted in it."""
        self.windows.append(None if by_cpus is None else (by_cpus, window_s))

    def shares(self, host: HostTopology) -> NodeShares | None:
        """Return the shares of the host's nodes; None where nobody counted, or nodes are not known."""
        counted = [one for one in self.windows if one is not None]
        if not counted or not _nodes_of(host, counted[-1][0]):
            return None
        by_window = [None if one is None else _by_node(host, *one) for one in self.windows]
        known = [one for one in by_window if one is not None]
        whole = _shares(np.stack(known).sum(axis=0)) if known else None
        return None if whole is None else NodeShares(whole, _shares(by_window[-1]))


def _nodes_of(host: HostTopology, by_cpus: ByCpus) -> list[int] | None:
    """Return the index of the node of each group of vCPUs; None where one may run on several."""
    nids = [host.nids_of_cpus(cpus) for cpus, *_ in by_cpus]
    return [host.nids.index(one[0]) for one in nids] if all(len(one) == 1 for one in nids) else None


def _by_node(host: HostTopology, by_cpus: ByCpus, window_s: float) -> Counts | None:
    """Return the accesses by node; None where those of a node with vCPUs are not known."""
    vcpus, counted, accesses = np.zeros((3, len(host.nids)))
    for node, (_, number, rate) in zip(_nodes_of(host, by_cpus) or (), by_cpus, strict=False):
        vcpus[node] += number
        if rate is not None:
            counted[node] += number
            accesses[node] += rate * window_s * 1e6
    if not vcpus.any() or (accesses < 0).any() or ((vcpus > 0) & (counted == 0)).any():
        return None
    found: Counts = accesses * vcpus / np.maximum(counted, 1.0)
    return found


def _shares(counts: Counts | None) -> tuple[float, ...] | None:
    if counts is None or counts.sum() < LEAST_ACCESSES:
        return None
    return tuple((counts / counts.sum()).tolist())
