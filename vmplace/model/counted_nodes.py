"""How often does each node access a guest's pages, where samples tell pages and counters tell nodes?

Samples are few: of a hundred, a node that made a quarter of the accesses has 16 to 34.  A plan that follows
them moves what all nodes share to and fro.  Counters of vCPU threads count all accesses, and of a vCPU that
runs on one node they tell the node.  So each node's samples are weighed: in all it has the share that was
counted.
"""

from collections.abc import Sequence

import numpy as np

from vmplace.model.metrics import Matrix

MOST = 4.0
"""A node's samples count for so many times as much, at most: few of them must not stand for all it does."""


def as_counted(heat: Matrix, shares: Sequence[float]) -> None:
    """Weigh the heat [E, N] of each node so that it has its share of all (in place); what it is in all stays.

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
    scale = np.clip(scale, 1 / MOST, MOST)
    heat *= scale * (total / float(has @ scale))
