"""How much more does a node use the huge pages that lie on it than bits tell?  The guest's counted LAR tells.

Bits of a huge page that all nodes touch in each window show them alike, though one may touch it a thousand
times as often.  Counters of the CPU do not tell pages apart, but they count which share of all accesses was
local (a guest's LAR, local access ratio).  Where that is more than pages imply, one factor for what nodes use
of their own huge pages makes up for it.

A LAR that is less than pages imply says that others use pages, but not which, nor who: nothing is made of it.
Whoever moved pages by it would move them again in each plan.  Pages of 4 KiB keep what their bits tell, which
is far nearer to the truth, and so do huge pages that others clearly use more.
"""

import numpy as np

from vmplace import native
from vmplace.model.metrics import Matrix
from vmplace.sampling.page_arrays import Bools, Indexes, NodeIndexes

MOST = 1024.0
"""No page's own node counts for more than so many times what bits tell."""
ALIKE = 0.7
"""Bits show a page's own node alike with others if it has this share of what any of them has, at least."""
STEPS = 20
"""Halvings of the factor's logarithm: to a part in 10^5."""


def as_local_as_counted(heat: Matrix, node: NodeIndexes, huge: Bools, lar: float) -> None:
    """Raise the heat [E, N] of shared ``huge`` entries from their own ``node`` up to the counted ``lar``.

    In place; what an entry has in all stays.  Entries whose node is below 0 are absent, or have copies, whose
    accesses are local.

    Example: two nodes seem to use a huge page alike, and nine tenths of the accesses are local.

    >>> heat = np.array([[50.0, 50.0]])
    >>> as_local_as_counted(heat, np.zeros(1, np.int8), np.ones(1, np.bool_), 0.9)
    >>> heat.round(2).tolist()
    [[90.0, 10.0]]
    """
    mine = np.flatnonzero(huge & (node >= 0))
    some = heat.take(mine, axis=0)
    total, own = some @ np.ones(heat.shape[1]), some[np.arange(len(mine)), node[mine]]
    shared = (own < total) & (own > 0) & (own >= ALIKE * some.max(axis=1, initial=0.0))
    if not shared.any():
        return
    by_node = np.empty((heat.shape[1],) * 2)
    # Copies are read locally, and absent pages not at all.
    native.place_traffic(np.ascontiguousarray(heat), node, by_node)
    lacking = min(lar, 1.0) * float(by_node.sum()) - float(np.trace(by_node))
    if lacking > 0:
        mine, total, own = mine[shared], total[shared], own[shared]
        _scale(heat, mine, node[mine], _factor(own, total, float(own.sum()) + lacking))


def _factor(own: Matrix, total: Matrix, local: float) -> float:
    """Return by how much to scale ``own`` so that so much is ``local``, as near as MOST allows."""
    low, high = 0.0, np.log(MOST)
    for _ in range(STEPS):
        middle = (low + high) / 2
        factor = np.exp(middle)
        if float((total * factor * own / (total + (factor - 1) * own)).sum()) < local:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def _scale(heat: Matrix, mine: Indexes, node: NodeIndexes, factor: float) -> None:
    some = heat[mine]
    total = some.sum(axis=1, keepdims=True)
    some[np.arange(len(mine)), node] *= factor
    some *= total / np.maximum(some.sum(axis=1, keepdims=True), 1e-300)
    heat[mine] = some
