"""How good is a placement?  The metrics of Carrefour (ASPLOS'13, section 2)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TrafficMatrix:
    """Accesses of one window, by node of the CPU and node of the page.

    ``accesses[i, j]`` counts accesses from CPUs on ``nids[i]`` to memory on ``nids[j]``; nids may be
    sparse.  What is counted (DRAM reads and writes, or samples) is its maker's to say: only ratios
    between entries carry meaning across makers.
    """

    nids: tuple[int, ...]
    accesses: Matrix

    def mc_loads(self) -> Matrix:
        """Return the accesses served by each node's memory controller, in the order of ``nids``."""
        loads: Matrix = self.accesses.sum(axis=0)
        return loads

    def __add__(self, other: "TrafficMatrix") -> "TrafficMatrix":
        """Return the sum of two matrices of the same nodes; raises ValueError for others."""
        if self.nids != other.nids:
            raise ValueError(f"traffic of nodes {self.nids} and {other.nids} cannot be added")
        return TrafficMatrix(self.nids, self.accesses + other.accesses)


def local_access_ratio(traffic: TrafficMatrix) -> float | None:
    """Return the LAR in [0, 1], or None for a window without accesses."""
    total = float(traffic.accesses.sum())
    return float(np.trace(traffic.accesses)) / total if total else None


def imbalance(loads: Matrix) -> float | None:
    """Return the sample standard deviation (n - 1) of ``loads`` over their mean.

    All load at one of four is 2.0, as in Carrefour's table 1.  None without load or with fewer than two.
    """
    count = len(loads)
    total = np.add.reduce(loads)
    if count < 2 or not total:
        return None
    # As loads.std(ddof=1) reckons it, without what it does for other shapes.
    mean = total / count
    away = loads - mean
    return float(np.sqrt(np.add.reduce(away * away) / (count - 1)) / mean)


def mc_imbalance(traffic: TrafficMatrix, memory_nids: tuple[int, ...] | None = None) -> float | None:
    """Return the memory-controller imbalance over the nodes that have memory (all, if not given)."""
    counted = [i for i, nid in enumerate(traffic.nids) if memory_nids is None or nid in memory_nids]
    return imbalance(traffic.mc_loads()[counted])


def link_imbalance(traffic: TrafficMatrix) -> float | None:
    """Return the imbalance over directed node pairs, for hosts whose nodes are fully connected."""
    pairs = ~np.eye(len(traffic.nids), dtype=bool)
    return imbalance(traffic.accesses[pairs])
