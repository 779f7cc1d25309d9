"""Which 4 KiB pages of a guest are meant?  A bit for each page of the 2 MiB blocks that have any of them.

Pages are numbered by address: page 512 is at 2 MiB.  A set takes 72 bytes for each block.  What is done with
sets is done with whole rows of bits, and nothing changes in place.

>>> some = PageSet.of([513, 1030, 512])
>>> some.blocks.tolist(), len(some), (some - PageSet.of([513])).pages().tolist()
([1, 2], 3, [512, 1030])
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vmplace.sampling.block_rows import BIT_ROW, BITS, BYTE_ROW, Counts
from vmplace.sampling.page_arrays import Bools, Bytes, Indexes
from vmplace.topology.guest import PAGE_BYTES


@dataclass(frozen=True, eq=False)
class PageSet:
    """``blocks[K]``: numbers of 2 MiB blocks, ascending; ``bits[K, 64]``: which of their pages, some of each,
    lowest first."""

    blocks: Indexes
    bits: Bytes

    @classmethod
    def of(cls, pages: npt.ArrayLike) -> "PageSet":
        """Return the set of these pages, in any order."""
        numbers = np.asarray(pages, np.int64)
        blocks, row = _numbered(numbers // BYTE_ROW)
        flags = np.zeros((len(blocks), BYTE_ROW), np.bool_)
        flags[row, numbers % BYTE_ROW] = True
        return cls(blocks, np.packbits(flags, axis=1, bitorder="little"))

    @classmethod
    def of_runs(cls, hva: npt.NDArray[np.integer], npages: npt.NDArray[np.integer]) -> "PageSet":
        """Return the set of runs of ``npages``, each one or more, from addresses on.

        >>> PageSet.of_runs(np.array([511, 3]) * 4096, np.array([2, 1])).pages().tolist()
        [3, 511, 512]
        """
        first = hva.astype(np.int64) // PAGE_BYTES
        begin, end = -(-first // BYTE_ROW), (first + npages) // BYTE_ROW
        blocks = np.unique(_ranges(begin, np.maximum(end - begin, 0)))
        whole = cls(blocks, np.full((len(blocks), BIT_ROW), 255, np.uint8))
        # What lies before the first whole block of a run, and behind the last.
        before = np.minimum(begin * BYTE_ROW - first, npages)
        behind = np.maximum(first + npages - np.maximum(begin, end) * BYTE_ROW, 0)
        starts = np.stack([first, first + npages - behind], axis=1).reshape(-1)
        return cls.of(_ranges(starts, np.stack([before, behind], axis=1).reshape(-1))) | whole

    @cached_property
    def counts(self) -> Counts:
        """Return how many pages of each block are in the set."""
        counts: Counts = BITS[self.bits].sum(axis=1, dtype=np.int64)
        return counts

    @cached_property
    def _size(self) -> int:
        return int(self.counts.sum())

    def __len__(self) -> int:
        """Return how many pages there are."""
        return self._size

    def pages(self) -> Indexes:
        """Return the pages, ascending."""
        row, page = np.nonzero(np.unpackbits(self.bits, axis=1, bitorder="little"))
        pages: Indexes = self.blocks[row] * BYTE_ROW + page
        return pages

    def first(self, most: int) -> "PageSet":
        """Return the pages of the first blocks that have ``most`` together, or more, at most a block's."""
        upto = int(np.searchsorted(np.cumsum(self.counts), most)) + 1
        return self if upto >= len(self.blocks) else PageSet(self.blocks[:upto], self.bits[:upto])

    def rows(self, some: Bools) -> "PageSet":
        """Return the pages of some of the blocks."""
        return self if some.all() else PageSet(self.blocks[some], self.bits[some])

    def are_in(self, pages: Indexes) -> Bools:
        """Tell which of these pages are in the set."""
        row, known = self.rows_of(pages // BYTE_ROW)
        byte, bit = np.divmod(pages[known] % BYTE_ROW, 8)
        known[known] = self.bits[row[known], byte] >> bit.astype(np.uint8) & 1
        return known

    def counts_of(self, blocks: Indexes) -> Counts:
        """Return how many pages of each of these blocks are in the set."""
        row, known = self.rows_of(blocks)
        counts = np.zeros(len(blocks), np.int64)
        counts[known] = self.counts[row[known]]
        return counts

    def rows_of(self, blocks: Indexes) -> tuple[Indexes, Bools]:
        """Return where each of these blocks is, and which are there."""
        row = np.searchsorted(self.blocks, blocks)
        known = row < len(self.blocks)
        known[known] = self.blocks[row[known]] == blocks[known]
        return row, known

    def __or__(self, other: "PageSet") -> "PageSet":
        """Return the pages of both."""
        if not len(other.blocks):
            return self
        blocks = np.union1d(self.blocks, other.blocks)
        bits = np.zeros((len(blocks), BIT_ROW), np.uint8)
        for one in (self, other):
            bits[np.searchsorted(blocks, one.blocks)] |= one.bits
        return PageSet(blocks, bits)

    def __and__(self, other: "PageSet") -> "PageSet":
        """Return the pages that both have."""
        row, known = self.rows_of(other.blocks)
        bits = self.bits[row[known]] & other.bits[known]
        return _used(other.blocks[known], bits)

    def __sub__(self, other: "PageSet") -> "PageSet":
        """Return the pages that the other one does not have; itself, if it has none of these."""
        row, known = self.rows_of(other.blocks)
        if not known.any():
            return self
        bits = self.bits.copy()
        bits[row[known]] &= ~other.bits[known]
        return _used(self.blocks, bits)

    def is_same(self, other: "PageSet | None") -> bool:
        """Tell whether the other one has the same pages."""
        if other is None or other is self:
            return other is self
        return np.array_equal(self.blocks, other.blocks) and np.array_equal(self.bits, other.bits)


def _used(blocks: Indexes, bits: Bytes) -> PageSet:
    """Return the set without blocks of which it has no page."""
    return PageSet(blocks, bits).rows(np.asarray(bits.any(axis=1), np.bool_))


def _ranges(first: Indexes, counts: Indexes) -> Indexes:
    """Return ``counts`` numbers from each ``first`` on."""
    every: Indexes = np.arange(int(counts.sum())) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    return every


def _numbered(values: Indexes) -> tuple[Indexes, Indexes]:
    """Return the values that there are, ascending, and which of them each is."""
    if len(values) and (values[1:] < values[:-1]).any():
        return np.unique(values, return_inverse=True)
    new = np.append(True, values[1:] != values[:-1])[: len(values)]
    return values[new], np.cumsum(new) - 1


NO_PAGES = PageSet.of(())
