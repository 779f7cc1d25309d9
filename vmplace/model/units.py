"""The units of a range that can move, in runs of units that are alike.

A unit is a small page or a huge page.  Memory on one node that is touched as a whole makes few runs, so the
cost of going through all units of a guest follows how much they differ.
"""

from dataclasses import dataclass, replace

import numpy as np

from vmplace.sampling.block_rows import BYTE_ROW
from vmplace.sampling.frame_nodes import UNKNOWN
from vmplace.sampling.page_arrays import Bools, Bytes, Indexes, NodeIndexes
from vmplace.topology.guest import PAGE_BYTES

CHUNK_RUNS, CHUNK_BLOCKS = 1 << 13, 1 << 7
"""What is looked at in one go: runs, or blocks of small pages that differ."""


@dataclass(frozen=True)
class Units:
    """R runs of units that lie one behind the other, in one block, on one node and are equally hot.

    ``hva[R]``: of the first of each, ascending.  ``count[R]``: how many.  ``huge``: all are huge pages.
    """

    hva: Indexes
    count: Indexes
    huge: bool
    heat: Bytes
    node_index: NodeIndexes

    @classmethod
    def of_pages(cls, hva: Indexes, heat: Bytes, node_index: NodeIndexes, settled: int = UNKNOWN) -> "Units":
        """Return the small pages of blocks that begin at ``hva[n]``: heat[n, 512] and node[n, 512] of each.

        Without those whose node is not known, or ``settled``.
        """
        there = np.flatnonzero((node_index >= 0) & (node_index != settled))
        heats, nodes = heat.reshape(-1)[there], node_index.reshape(-1)[there]
        begins = np.ones(len(there), np.bool_)
        begins[1:] = (np.diff(there) != 1) | (heats[1:] != heats[:-1]) | (nodes[1:] != nodes[:-1])
        begins |= there % BYTE_ROW == 0
        first = np.flatnonzero(begins)
        count, page = np.diff(first, append=len(there)), there[first]
        at = hva[page // BYTE_ROW] + page % BYTE_ROW * PAGE_BYTES
        return cls(at, count, False, heats[first], nodes[first])

    @classmethod
    def of_blocks(
        cls, hva: Indexes, heat: Bytes, node_index: NodeIndexes, settled: int = UNKNOWN, *, huge: bool
    ) -> "Units":
        """Return blocks of pages that are alike, or huge pages: an item for each; without the same."""
        there = np.flatnonzero((node_index >= 0) & (node_index != settled))
        count = np.full(len(there), 1 if huge else BYTE_ROW)
        return cls(hva[there], count, huge, heat[there], node_index[there])

    def some(self, which: Bools | Indexes) -> "Units":
        """Return these runs."""
        return Units(self.hva[which], self.count[which], self.huge, self.heat[which], self.node_index[which])

    def singly(self) -> tuple["Units", Indexes]:
        """Return each unit by itself, and how many of its run come before it."""
        each = np.repeat(np.arange(len(self.hva)), self.count)
        before = np.cumsum(self.count) - self.count
        inside = np.arange(len(each)) - before[each]
        units = self.some(each)
        return replace(units, hva=units.hva + inside * PAGE_BYTES, count=np.ones_like(inside)), inside

    def joined(self, other: "Units") -> "Units":
        """Return both, ascending."""
        if not len(self.hva) or not len(other.hva):
            return self if len(self.hva) else other
        both = Units(
            np.concatenate([self.hva, other.hva]),
            np.concatenate([self.count, other.count]),
            self.huge,
            np.concatenate([self.heat, other.heat]),
            np.concatenate([self.node_index, other.node_index]),
        )
        return both.some(np.argsort(both.hva, kind="stable"))


def portions(some: Indexes, alike: Bools) -> list[Indexes]:
    """Return blocks in portions: at most ``CHUNK_RUNS``, or ``CHUNK_BLOCKS`` whose pages are not alike."""
    upto = np.cumsum(np.where(alike[some], 1, CHUNK_RUNS // CHUNK_BLOCKS)) // CHUNK_RUNS
    return np.split(some, np.flatnonzero(np.diff(upto)) + 1) if len(some) else []
