"""Statistics of a whole 2 MiB block whose small pages differ, for blocks beyond the limit of single pages.

1. The busiest blocks are looked at page by page, as many as the limit allows.  They are ordered by heat in
   powers of two, then by address, so that plan after plan chooses the same ones.
2. Of each of the others, some pages are looked at, evenly taken.  What these have on average stands for all.

Limits: of a block with a few busy pages these may be missed.
"""

from collections.abc import Sequence

import numpy as np

from vmplace.model.page_rates import PER_SECOND, codes_of
from vmplace.model.pages import HISTORY_WINDOWS, RangePages, SeenWindow
from vmplace.sampling.block_rows import BIT_ROW, BYTE_ROW, BlockRows, bits_set, chunks
from vmplace.sampling.page_arrays import Bytes, Indexes, NodeIndexes

EACH_BITS, EACH_BYTES = 8, 32
"""One in so many of a row is looked at: 8 of 64 bytes of bits (64 pages), 16 of 512 bytes (16 pages)."""
LOOKED_AT = BIT_ROW // EACH_BITS * 8
"""Pages, of a row of bits."""
FEW = 1 / 32
"""A node that touched fewer of the pages looked at, in all windows together, counts as none."""
CHUNK = 1 << 10


def coarse_blocks(
    pages: RangePages, some: Indexes, differ: int, nodes: Sequence[int], most: int | None
) -> tuple[Indexes, Bytes | None]:
    """Return which of these blocks are taken together, ascending, so that at most ``most`` pages are not.

    And in how many windows each node touched a page of them (``coarse_touches``), None for no blocks.
    ``differ``: how many blocks would be looked at page by page, those at the range's ends (always) included.
    ``nodes``: those that touched any block.
    """
    if most is None or differ * BYTE_ROW <= most:
        return some[:0], None
    kept = max(most // BYTE_ROW - (differ - len(some)), 0)
    touches = coarse_touches(pages.seen[: pages.history], some, pages.blocks, nodes)
    if not kept:
        return some, touches
    busy = touches.sum(axis=0, dtype=np.int64)
    if pages.rate:
        # A code is a logarithm.
        busy = coarse_codes(pages.rate, some, pages.blocks).max(axis=0).astype(np.int64) // 8
    # Blocks come ascending.
    chosen = np.sort(np.argsort(-busy, kind="stable")[kept:])
    return some[chosen], touches[:, chosen]


def coarse_touches(
    windows: tuple[SeenWindow, ...], some: Indexes, blocks: int, nodes: Sequence[int]
) -> Bytes:
    """Return in how many windows each node touched a page of these blocks, on average [N + 1, n]."""
    counts = np.zeros((windows[0].planes(blocks), len(some)), np.uint8)
    # Most memory is used by few nodes.
    rows = (np.array(nodes, np.int64)[:, None] * blocks + some).reshape(-1)
    bits = bits_set([window.accessed for window in windows], rows, EACH_BITS)
    counts[nodes] = TIMES[bits].reshape(len(nodes), len(some))
    return counts


def _times() -> Bytes:
    """Return in how many windows a page was touched on average, by touches of those looked at in all."""
    mean = np.arange(HISTORY_WINDOWS * LOOKED_AT + 1) / LOOKED_AT
    return np.where(mean > FEW, np.maximum(np.rint(mean), 1), 0).astype(np.uint8)


TIMES = _times()


def coarse_codes(rate: BlockRows, some: Indexes, blocks: int) -> Bytes:
    """Return the code of the mean rate by node [N, n]."""
    nodes = len(rate.value) // blocks
    means = np.empty((nodes, len(some)))
    for node in range(nodes):
        parts = (rate.some(rows)[:, ::EACH_BYTES] for rows in chunks(node * blocks + some, CHUNK))
        means[node] = np.concatenate([np.zeros(0), *(PER_SECOND[part].mean(axis=1) for part in parts)])
    return codes_of(means)


def most_on(pages: RangePages, some: Indexes, nodes: int) -> NodeIndexes:
    """Return the index of the node that has most pages of each block [n], -1 where none is in memory."""
    if not pages.nodes.is_any_mixed(some):
        node = pages.nodes.value[some].view(np.int8)
        return np.where((node >= 0) & (node < nodes), node, np.int8(-1))
    found = np.empty(len(some), np.int8)
    for start in range(0, len(some), CHUNK):
        where = pages.nodes_of(some[start : start + CHUNK])[:, ::EACH_BITS]
        counts = np.stack([np.count_nonzero(where == node, axis=1) for node in range(nodes)])
        found[start : start + CHUNK] = np.where(counts.any(axis=0), counts.argmax(axis=0), -1)
    return found
