"""How often does each node access a guest's pages, where samples tell pages and counters tell nodes?

Samples are few: of a hundred, a node that made a quarter of the accesses has 16 to 34.  A plan that follows
them moves what all nodes share to and fro.  Counters of vCPU threads count all accesses, and of a vCPU that
runs on one node they tell the node.  So each node's samples are weighed: in all it has the share that was
counted, but for what it was sampled at in memory that is not asked for.  Samples may count for longer than
that (remembered.py): they tell which pages a node uses, counters how much it does now.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix
from vmplace.model.pages import HISTORY_WINDOWS, RangePages

Counts = npt.NDArray[np.float64]

MOST = 4.0
"""A node's samples count for so many times as much, at most: few of them must not stand for all it does."""


def as_counted(heat: Matrix, shares: Sequence[float] | Counts) -> None:
    """Weigh the heat [E, N] of each node so that it has its share of all (in place), as far as MOST allows.

    >>> heat = np.array([[4.0, 1.0], [2.0, 1.0]])
    >>> as_counted(heat, [0.5, 0.5])
    >>> heat.round(2).tolist()
    [[2.67, 2.0], [1.33, 2.0]]
    """
    has = heat.sum(axis=0)
    total, want = float(has.sum()), np.asarray(shares)
    if total <= 0 or len(want) != heat.shape[1]:
        return
    scale = np.divide(want * total, has, out=np.ones_like(has), where=has > 0)
    heat *= np.clip(scale, 1 / MOST, MOST)


def shares_of_some(shares: Sequence[float], ranges: Iterable[RangePages], some: Collection[int]) -> Counts:
    """Return the shares of nodes in the ranges at these addresses, where ``shares`` are of all ranges.

    ``ranges``: with their samples; those of HISTORY_WINDOWS are of the time that was counted.
    """
    nodes = len(shares)
    inside, outside = np.zeros((2, nodes))
    for one in ranges:
        found = inside if one.ram.hva in some else outside
        for hits in one.counted[:HISTORY_WINDOWS]:
            found += np.bincount(hits.rows, minlength=nodes + 1)[:nodes]
    left = np.maximum(np.asarray(shares) * (inside.sum() + outside.sum()) - outside, 0.0)
    part: Counts = left / left.sum() if left.any() else np.asarray(shares, np.float64)
    return part
