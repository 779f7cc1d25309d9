"""What of a range can move, each as a whole, in runs of what is alike?

A unit is a small page or a huge one.  Of memory that one node holds and that is touched as a whole there are
few runs, so what is asked of all units of a guest costs what differs.
"""

from dataclasses import dataclass, replace

import numpy as np

from vmplace.sampling.block_rows import BYTE_ROW
from vmplace.sampling.sample import Bools, Bytes, Indexes, NodeIndexes
from vmplace.topology.guest import PAGE_BYTES

CHUNK_RUNS, CHUNK_BLOCKS = 1 << 13, 1 << 5
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
    def of_blocks(cls, hva: Indexes, heat: Bytes, node_index: NodeIndexes, *, huge: bool) -> "Units":
        """Return blocks of pages that are alike, or huge pages: an item for each."""
        count = np.full(len(hva), 1 if huge else BYTE_ROW)
        return cls(hva, count, huge, heat, node_index)

    @classmethod
    def of_pages(cls, hva: Indexes, heat: Bytes, node_index: NodeIndexes) -> "Units":
        """Return the small pages of blocks that begin at ``hva[n]``: heat and node of 512 pages for each."""
        heats, nodes = heat.reshape(-1, BYTE_ROW), node_index.reshape(-1, BYTE_ROW)
        begins = np.ones(heats.shape, np.bool_)
        begins[:, 1:] = (heats[:, 1:] != heats[:, :-1]) | (nodes[:, 1:] != nodes[:, :-1])
        first = np.flatnonzero(begins)
        count = np.diff(first, append=begins.size)
        at = hva[first // BYTE_ROW] + first % BYTE_ROW * PAGE_BYTES
        return cls(at, count, False, heat[first], node_index[first])

    def some(self, which: Bools | Indexes) -> "Units":
        """Return these runs."""
        return Units(self.hva[which], self.count[which], self.huge, self.heat[which], self.node_index[which])

    def movable(self, settled: int) -> "Units":
        """Return those whose node is known and another one than ``settled``."""
        return self.some((self.node_index >= 0) & (self.node_index != settled))

    def singly(self) -> tuple["Units", Indexes]:
        """Return each unit by itself, and how many of its run come before it."""
        each = np.repeat(np.arange(len(self.hva)), self.count)
        before = np.cumsum(self.count) - self.count
        inside = np.arange(len(each)) - before[each]
        units = self.some(each)
        return replace(units, hva=units.hva + inside * PAGE_BYTES, count=np.ones_like(inside)), inside

    def joined(self, other: "Units") -> "Units":
        """Return both, ascending."""
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
