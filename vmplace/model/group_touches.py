"""How much does each node use groups of pages that are alike?  The evidence for a plan of many guests.

1. A page counts once for each node and window of the history in which that node touched it: a bit tells no
   more.  All pages of a huge page that was touched count.
2. Where accesses were counted, too, or bits were read several times a window, the touches in each 2 MiB block
   are weighed by the heat that this gives it (use_fused.py).  The sum over the range stays as 1 has it.
3. Pages that several nodes share are alike if the same nodes use their block: those that make at least half
   of an even share of the touches.  A block with few touches goes with all shared pages of its range.

So a range has a few groups, however many pages it has, and a plan is made for these.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix
from vmplace.model.touched_pages import CHUNK_ENTRIES, TouchedPages
from vmplace.model.use_fused import block_heat
from vmplace.sampling.page_arrays import Bools

Groups = npt.NDArray[np.int16]
NO_GROUP = -1
LEAST_TOUCHES = 64
"""Of fewer touches by four nodes alike, one has less than half an even share in more than 1 of 100 cases."""


@dataclass(frozen=True)
class SharedGroups:
    """The groups of the shared pages of a range.

    ``of_page[E]``: number of each entry's group, or NO_GROUP.  ``users[G, N]``: the nodes that use a group.
    """

    of_page: Groups
    users: Bools


def shared_groups(pages: TouchedPages, shared: Bools) -> SharedGroups:
    """Return the groups of the entries that are ``shared``."""
    if not shared.any():
        nobody = np.zeros((0, pages.nodes), np.bool_)
        return SharedGroups(np.full(len(shared), NO_GROUP, np.int16), nobody)
    touches = pages.touches[: pages.nodes]
    by_block = np.stack([pages.by_block(row * shared) for row in touches], axis=1)
    masks = _users(by_block)
    few = by_block.sum(axis=1) < LEAST_TOUCHES
    masks[few] = _users(by_block.sum(axis=0, keepdims=True))
    distinct, group_of_block = np.unique(masks, axis=0, return_inverse=True)
    of_page = pages.of_block(group_of_block.reshape(-1).astype(np.int16))
    return SharedGroups(np.where(shared, of_page, np.int16(NO_GROUP)).astype(np.int16), distinct)


def touches_by_group(pages: TouchedPages, group: Groups, groups: int) -> Matrix:
    """Return the touches a window [G, N] of the pages of each group; ``group[E]`` as in ``SharedGroups``."""
    weights = _weights(pages)
    total = _counted(pages, group, groups) if weights is None else _weighed(pages, group, groups, weights)
    by_window: Matrix = total[1:] / pages.windows
    return by_window


def pages_by_group(pages: TouchedPages, group: Groups, groups: int) -> Matrix:
    """Return how many pages of each group are on each node [G, N]."""
    kinds = pages.nodes + 1
    code = (group + 1) * kinds + np.maximum(pages.node_index, -1) + 1
    return pages.by_code(code, (groups + 1) * kinds).reshape(-1, kinds)[1:, 1:]


def _counted(pages: TouchedPages, group: Groups, groups: int) -> Matrix:
    """Return the touches by group, first of no group, and node: of how many pages there are so many."""
    kinds, total = pages.windows + 1, np.zeros((groups + 1, pages.nodes))
    first = (group + 1) * kinds
    for node in np.flatnonzero(pages.touches[: pages.nodes].any(axis=1)).tolist():
        counts = pages.by_code(first + pages.touches[node], (groups + 1) * kinds)
        total[:, node] = counts.reshape(-1, kinds) @ np.arange(kinds)
    return total


def _weighed(pages: TouchedPages, group: Groups, groups: int, weights: Matrix) -> Matrix:
    """Return the same, where touches in each block [B, N] have their weight."""
    total, sizes = np.zeros((groups + 1, pages.nodes)), pages.sizes
    for start in range(0, len(group), CHUNK_ENTRIES):
        part = slice(start, start + CHUNK_ENTRIES)
        key, block = group[part] + 1, pages.block_of(np.arange(start, min(start + CHUNK_ENTRIES, len(group))))
        for node in np.flatnonzero(pages.touches[: pages.nodes, part].any(axis=1)).tolist():
            each = pages.touches[node, part] * sizes[part] * weights[block, node]
            total[:, node] += np.bincount(key, each, groups + 1)
    return total


def _users(touches: Matrix) -> Bools:
    """Return for rows of touches [B, N] which nodes make at least half of an even share."""
    users: Bools = (touches > 0) & (touches * 2 * touches.shape[1] >= touches.sum(axis=1, keepdims=True))
    return users


def _weights(pages: TouchedPages) -> Matrix | None:
    """Return by how much the touches in each block [B, N] count, None where bits alone were read, once."""
    if not pages.counted and pages.codes is None:
        return None
    heat = block_heat(pages).heat
    seen = np.stack([pages.by_block(row) for row in pages.touches[: pages.nodes]], axis=1)
    weights: Matrix = np.divide(heat, seen, out=np.ones_like(heat), where=seen > 0)
    return weights
