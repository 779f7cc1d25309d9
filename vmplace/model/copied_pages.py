"""Which pages of a guest have copies, and on which nodes lie those of them that were touched lately?"""

from dataclasses import dataclass

import numpy as np

from vmplace.model.pages import Counts, RangePages
from vmplace.model.units import CHUNK_RUNS
from vmplace.sampling.block_rows import BITS, chunks
from vmplace.sampling.page_arrays import Bools, Bytes, Indexes
from vmplace.sampling.page_set import PageSet
from vmplace.topology.guest import HUGE_BYTES


@dataclass(frozen=True, eq=False)
class CopiedPages:
    """Pages of one guest of which each of ``nids`` has a copy."""

    pages: PageSet
    nids: tuple[int, ...]


def hot_copied(one: RangePages, nodes: int, copied: PageSet) -> Counts:
    """Return how many pages of a range were touched in the last window and have copies, by index of the node
    that they lie on."""
    total, first = np.zeros(nodes, np.int64), one.ram.hva // HUGE_BYTES
    begin, end = np.searchsorted(copied.blocks, (first, first + one.blocks)).tolist()
    mixed = one.nodes.is_mixed
    for rows in chunks(np.arange(begin, end), CHUNK_RUNS):
        some = copied.blocks[rows] - first
        total += _by_node(one, nodes, some, mixed[some], one.hot_bits(some) & copied.bits[rows])
    return total


def _by_node(one: RangePages, nodes: int, some: Indexes, mixed: Bools, bits: Bytes) -> Counts:
    """Return on which nodes those pages [n, 64] of some blocks lie whose bits are set."""
    counts = BITS[bits[~mixed]].sum(axis=1)
    total = np.bincount(one.nodes.value[some[~mixed]], counts, 256)[:nodes].astype(np.int64)
    apart = np.flatnonzero(mixed & bits.any(axis=1))
    if len(apart):
        index = one.nodes_of(some[apart])
        hot = np.unpackbits(bits[apart], axis=1, bitorder="little").view(np.bool_)
        total += [np.count_nonzero((index == node) & hot) for node in range(nodes)]
    return total
