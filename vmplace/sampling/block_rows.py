"""How is what is known of each page kept small?  A row of bytes for each 2 MiB block; one whose bytes are
equal costs two bytes, however long it is.

Huge pages, memory that nobody touched and memory of one node are such rows: what is kept follows what
differs.  Two kinds of rows: a bit per page (64 bytes), lowest first, and a byte per page (512).  Several
planes of rows lie one after the other: row ``plane * blocks + block``.  Nothing changes in place.

Example: of three blocks one was never touched, one has the same byte on all its pages, and in the third two
pages differ from the others.  Only the third keeps its 512 bytes.

>>> rows = np.zeros((3, 512), np.uint8)
>>> rows[1], rows[2, :2] = 7, 7
>>> kept = BlockRows.of(rows)
>>> kept.value.tolist(), kept.is_mixed.tolist(), kept.detail.shape
([0, 7, 7], [False, False, True], (1, 512))
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.sampling.page_arrays import Bits, Bools, Bytes, Indexes, unpacked
from vmplace.sampling.page_frames import PAGES_PER_HUGE, block_count, block_offset
from vmplace.topology.guest import RamRange

Counts = npt.NDArray[np.int64]
BIT_ROW, BYTE_ROW = PAGES_PER_HUGE // 8, PAGES_PER_HUGE
WORD_PAGES = 64
BITS = np.array([value.bit_count() for value in range(256)], np.uint8)
"""How many are set, by value (numpy counts them itself from 2.0 on)."""


@dataclass(frozen=True)
class BlockRows:
    """R rows of ``width`` bytes.

    ``value[R]``: the first byte of each.  ``mixed``: a bit per row, highest first, for those whose bytes
    differ, which are ``detail[K, width]``, in order.  ``before``: how many of them come before each eighth
    row.
    """

    width: int
    value: Bytes
    mixed: Bytes
    before: npt.NDArray[np.int32]
    detail: Bytes

    @classmethod
    def of(cls, rows: Bytes) -> "BlockRows":
        """Keep ``rows[R, width]``; the array may be kept itself, and must not change."""
        alike = np.empty(len(rows), np.uint8)
        native.rows_alike(rows.reshape(-1), alike)
        mixed = alike == 0
        return cls._kept(rows.shape[1], rows[:, 0].copy(), mixed, rows if mixed.all() else rows[mixed])

    @classmethod
    def built(cls, count: int, width: int, parts: Iterable[tuple[Indexes, Bytes]]) -> "BlockRows":
        """Keep ``count`` rows: (indexes, rows) in ascending order; those that are left out are of zeros."""
        value, mixed, details = np.zeros(count, np.uint8), np.zeros(count, np.bool_), []
        for some, rows in parts:
            kept = cls.of(rows)
            value[some], mixed[some] = kept.value, kept.is_mixed
            details.append(kept.detail)
        none = np.zeros((0, width), np.uint8)
        return cls._kept(width, value, mixed, np.concatenate([none, *details]))

    @classmethod
    def _kept(cls, width: int, value: Bytes, mixed: Bools, detail: Bytes) -> "BlockRows":
        packed = np.packbits(mixed)
        before = np.cumsum(BITS[packed], dtype=np.int32) - BITS[packed]
        return cls(width, value, packed, before, detail)

    @property
    def nbytes(self) -> int:
        """Return the memory that the rows take."""
        return self.value.nbytes + self.mixed.nbytes + self.before.nbytes + self.detail.nbytes

    @property
    def is_mixed(self) -> Bools:
        """Return which rows have bytes that differ."""
        mixed: Bools = np.unpackbits(self.mixed, count=len(self.value)).view(np.bool_)
        return mixed

    @property
    def is_even(self) -> Bools:
        """Return which rows of bits are all set, or all clear."""
        return ~used_and_uneven([self])[1]

    @property
    def is_used(self) -> Bools:
        """Return which rows are not of zeros."""
        used: Bools = self.is_mixed | (self.value != 0)
        return used

    def used(self, which: Indexes) -> Bools:
        """Return which of these rows are not of zeros."""
        used = np.empty(len(which), np.uint8)
        native.rows_used(self.parts, numbers(which), used)
        return used.view(np.bool_)

    def any_used(self, which: Indexes) -> bool:
        """Tell whether any of these rows is not of zeros."""
        return native.rows_used(self.parts, numbers(which), np.empty(len(which), np.uint8)) > 0

    def some(self, which: Indexes) -> Bytes:
        """Return these rows [n, width], a copy."""
        found = np.empty((len(which), self.width), np.uint8)
        native.rows_some(self.parts, numbers(which), found)
        return found

    def is_any_mixed(self, which: Indexes) -> bool:
        """Tell whether any of these rows has bytes that differ."""
        return bool(len(self.detail)) and bool(self.is_mixed[which].any())

    @property
    def parts(self) -> tuple[Bytes, Bytes, npt.NDArray[np.int32], Bytes, int]:
        """Return what the C core takes for rows."""
        return self.value, self.mixed, self.before, self.detail, self.width

    def set_bits(self, planes: int) -> Counts:
        """Return how many bits are set in each of so many planes."""
        blocks, mixed = len(self.value) // planes, np.flatnonzero(self.is_mixed)
        used = np.flatnonzero(self.value != 0)
        used = used[~self.is_mixed[used]]
        of_rows = np.bincount(used // blocks, BITS[self.value[used]], planes) * self.width
        of_detail = np.bincount(mixed // blocks, BITS[self.detail].sum(axis=1), planes)
        counts: Counts = (of_rows + of_detail).astype(np.int64)
        return counts


def used_and_uneven(some: Sequence[BlockRows]) -> tuple[Bools, Bools]:
    """Return which rows of bits are not of zeros, and which neither all set nor all clear, in any."""
    used, uneven = np.empty((2, len(some[0].value)), np.uint8)
    native.rows_kinds(tuple(one.parts for one in some), used, uneven)
    return used.view(np.bool_), uneven.view(np.bool_)


def bits_set(some: Sequence[BlockRows], which: Indexes, step: int) -> npt.NDArray[np.int32]:
    """Return how many bits are set in each ``step``-th byte of these rows [n], in all together."""
    bits = np.empty(len(which), np.int32)
    native.rows_bits(tuple(one.parts for one in some), numbers(which), step, bits)
    return bits


def numbers(which: Indexes) -> Bits:
    """Return numbers of rows as the C core takes them."""
    return np.ascontiguousarray(which, np.int64).view(np.uint64)


def chunks(some: Indexes, size: int) -> Iterator[Indexes]:
    """Yield at most ``size`` of them at a time."""
    for start in range(0, len(some), size):
        yield some[start : start + size]


def rows_of_pages(values: npt.NDArray[np.int8] | Bytes, ram: RamRange, missing: int) -> Bytes:
    """Return a byte per page [blocks, 512]; pages of the blocks that the range lacks are ``missing``."""
    blocks, offset = block_count(ram), block_offset(ram)
    if len(values) == blocks * BYTE_ROW:
        return np.ascontiguousarray(values).view(np.uint8).reshape(blocks, BYTE_ROW)
    pages = np.full(blocks * BYTE_ROW, missing, values.dtype)
    pages[offset : offset + len(values)] = values
    return pages.view(np.uint8).reshape(blocks, BYTE_ROW)


def rows_of_bits(planes: Bits, ram: RamRange) -> Bytes:
    """Return bitmaps of the range's pages, ``planes[P, words]``, as rows [P * blocks, 64] of its blocks."""
    words, offset = block_count(ram) * BIT_ROW // 8, block_offset(ram)
    if planes.shape[1] == words and not offset:
        return np.ascontiguousarray(planes).view(np.uint8).reshape(-1, BIT_ROW)
    aligned = np.zeros((len(planes), words), np.uint64)
    lead = offset // WORD_PAGES
    if offset % WORD_PAGES:
        planes = _shifted(planes, offset % WORD_PAGES, ram.npages)
    aligned[:, lead : lead + planes.shape[1]] = planes
    return aligned.view(np.uint8).reshape(-1, BIT_ROW)


def _shifted(planes: Bits, by: int, npages: int) -> Bits:
    count = -(-(by + npages) // WORD_PAGES)
    pages = np.zeros((len(planes), count * WORD_PAGES), np.uint8)
    for row, words in zip(pages, planes, strict=True):
        row[by : by + npages] = unpacked(words, npages)
    return np.packbits(pages, axis=1, bitorder="little").view(np.uint64)
