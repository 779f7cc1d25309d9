"""Which pages of a guest have copies, and on which nodes lie those of them that were touched lately?"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.model.pages import Counts, RangePages
from vmplace.model.units import CHUNK_BLOCKS
from vmplace.sampling.block_rows import BYTE_ROW, chunks
from vmplace.sampling.page_arrays import Bools, Indexes
from vmplace.sampling.page_frames import block_offset
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES


@dataclass(frozen=True, eq=False)
class AddressRuns:
    """R runs of 4 KiB pages, ascending and apart: ``hva`` (bytes) and ``npages``."""

    hva: Indexes
    npages: Indexes

    @classmethod
    def of(cls, hva: npt.ArrayLike, npages: npt.ArrayLike) -> "AddressRuns":
        """Return runs in any order, some of which may be of the same pages.

        >>> AddressRuns.of([0x5000, 0x1000, 0x2000], [1, 2, 2]).npages.tolist()
        [3, 1]
        """
        first = np.asarray(hva, np.int64)
        order = np.argsort(first, kind="stable")
        first = first[order]
        ends = np.maximum.accumulate(first + np.asarray(npages, np.int64)[order] * PAGE_BYTES)
        begins = np.flatnonzero(np.append(True, first[1:] > ends[:-1])[: len(first)])
        last = np.append(begins[1:], len(first))[: len(begins)] - 1
        return cls(first[begins], (ends[last] - first[begins]) // PAGE_BYTES)

    def count_in(self, hva: Indexes, npages: npt.NDArray[np.integer] | int) -> Counts:
        """Return how many of the ``npages`` from each address ``hva`` on are among these."""
        before = np.append(0, np.cumsum(self.npages))
        counts: Counts = self._below(hva + npages * PAGE_BYTES, before) - self._below(hva, before)
        return counts

    def between(self, begin: int, end: int) -> "AddressRuns":
        """Return what there is of these between two addresses."""
        first = max(int(np.searchsorted(self.hva, begin, "right")) - 1, 0)
        some = slice(first, int(np.searchsorted(self.hva, end, "left")))
        hva = np.maximum(self.hva[some], begin)
        ends = np.minimum(self.hva[some] + self.npages[some] * PAGE_BYTES, end)
        there = np.flatnonzero(ends > hva)
        return AddressRuns(hva[there], (ends[there] - hva[there]) // PAGE_BYTES)

    def _below(self, hva: Indexes, before: Counts) -> Counts:
        """Return how many pages of all runs lie below each address; ``before``: below each run, and all."""
        run = np.searchsorted(self.hva, hva, "right") - 1
        mine = np.maximum(run, 0)
        inside = np.minimum((hva - self.hva[mine]) // PAGE_BYTES, self.npages[mine]) if len(self.hva) else 0
        return np.where(run >= 0, before[mine] + inside, 0)


@dataclass(frozen=True, eq=False)
class CopiedPages:
    """Pages of one guest of which each of ``nids`` has a copy."""

    pages: AddressRuns
    nids: tuple[int, ...]


def hot_copied(one: RangePages, nodes: int, copied: AddressRuns) -> Counts:
    """Return how many pages of a range were touched in the last window and have copies, by index of the node
    that they lie on."""
    total = np.zeros(nodes, np.int64)
    hva = one.ram.hva + (np.arange(one.blocks) * BYTE_ROW - block_offset(one.ram)) * PAGE_BYTES
    counts = copied.count_in(hva, BYTE_ROW)
    for some in chunks(np.flatnonzero(counts), CHUNK_BLOCKS):
        index, hot = one.nodes_of(some), one.are_hot(some)
        in_part = np.flatnonzero(counts[some] < BYTE_ROW)
        if len(in_part):
            hot[in_part] &= _are_copied(copied, hva[some[in_part]])
        total += [np.count_nonzero(hot & (index == node)) for node in range(nodes)]
    return total


def _are_copied(copied: AddressRuns, block_hva: Indexes) -> Bools:
    """Return which pages [n, 512] of blocks that begin at these addresses, ascending, have copies."""
    block_page = block_hva // PAGE_BYTES
    near = copied.between(int(block_hva[0]), int(block_hva[-1]) + HUGE_BYTES)
    before = np.cumsum(near.npages) - near.npages
    page = np.repeat(near.hva // PAGE_BYTES - before, near.npages)
    page += np.arange(len(page))
    row = np.searchsorted(block_page, page, "right") - 1
    offset = page - block_page[row]
    mine = np.flatnonzero(offset < BYTE_ROW)
    flags = np.zeros((len(block_hva), BYTE_ROW), np.bool_)
    flags[row[mine], offset[mine]] = True
    return flags
