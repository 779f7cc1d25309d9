"""Of which pages of a range is there anything to know, and what was seen of them in the last windows?

Guests are large.  What they touch in a few windows may be little, and of a huge page there is one bit to
see.  So who uses which page is asked of *entries*, and costs what there is of these:

* a 4 KiB page is one, in each 2 MiB block in which anything was seen;
* a huge page is one, and counts as the 512 pages that it has.

First come the blocks of small pages, ascending, then the huge pages, ascending.  Where the range has a part
of a block, small pages that are not there have entries, too, of which nothing was seen; a huge page that is
in the range in part cannot move, and has none.  Where the source sees some touches only, what was not seen
may have been touched all the same: all blocks have entries.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vmplace.model.page_pace import PER_SECOND
from vmplace.model.pages import RangePages, Units
from vmplace.sampling.sample import Bits, Bools, Bytes, Indexes, NodeBits, NodeHits, NodeIndexes, unpacked
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, RamRange

Floats = npt.NDArray[np.float64]
T = TypeVar("T", bound=np.generic)
HUGE_PAGES = HUGE_BYTES // PAGE_BYTES
WORD_PAGES = 64
BLOCK_WORDS = HUGE_PAGES // WORD_PAGES
CHUNK_ENTRIES = 1 << 14


@dataclass(frozen=True)
class TouchedPages:
    """What was seen of a range in the last ``windows``: E entries in B blocks, N nodes.

    ``blocks[B]``: their numbers in the range; the first ``small`` of them have small pages.  ``touches[N + 1,
    E]``: in how many windows each node touched it; the last row is of nodes that are not known.
    ``seen[E]``, ``wrote[E]``: whether anybody touched it, and wrote; bit 0 of the newest window.
    ``all_written``: in one of them that could not be told.  ``codes[N, E]``: its pace (page_pace.py).
    ``sampled``, ``counted`` and ``text`` are those of ``RangePages``, with entries for pages.
    """

    ram: RamRange
    blocks: Indexes
    small: int
    windows: int
    heat: Bytes
    node_index: NodeIndexes
    touches: Bytes
    seen: Bytes
    wrote: Bytes
    all_written: bool
    sampled: bool
    counted: tuple[NodeHits, ...]
    text: tuple[Indexes, ...]
    codes: Bytes | None

    @property
    def nodes(self) -> int:
        """Return how many nodes there are."""
        return len(self.touches) - 1

    @property
    def is_huge(self) -> Bools:
        """Return which entries are huge pages."""
        huge = np.zeros(len(self.heat), np.bool_)
        huge[self.small * HUGE_PAGES :] = True
        return huge

    @property
    def sizes(self) -> npt.NDArray[np.int32]:
        """Return how many 4 KiB pages each entry is."""
        sizes = np.ones(len(self.heat), np.int32)
        sizes[self.small * HUGE_PAGES :] = HUGE_PAGES
        return sizes

    @property
    def begins_block(self) -> Bools:
        """Return which entries are the first of their block."""
        begins = np.ones(len(self.heat), np.bool_)
        begins[: self.small * HUGE_PAGES].reshape(-1, HUGE_PAGES)[:, 1:] = False
        return begins

    @property
    def exists(self) -> Bools:
        """Return which entries are pages of the range."""
        there, before = np.ones(len(self.heat), np.bool_), _offset(self.ram)
        if self.small:
            beyond = (int(self.blocks[self.small - 1]) + 1) * HUGE_PAGES - before - self.ram.npages
            there[: 0 if self.blocks[0] else before] = False
            there[self.small * HUGE_PAGES - max(beyond, 0) : self.small * HUGE_PAGES] = False
        return there

    def by_block(self, values: npt.NDArray[np.generic], *, huge_pages: int = HUGE_PAGES) -> Floats:
        """Return the sum over the pages of each block, where a huge page counts as so many."""
        edge = self.small * HUGE_PAGES
        sums = values[:edge].reshape(-1, HUGE_PAGES).sum(axis=1, dtype=np.float64)
        return np.concatenate([sums, values[edge:].astype(np.float64) * huge_pages])

    def of_block(self, values: npt.NDArray[T]) -> npt.NDArray[T]:
        """Return for each entry what holds for its block."""
        edge, found = self.small * HUGE_PAGES, np.empty(len(self.heat), values.dtype)
        found[:edge].reshape(-1, HUGE_PAGES)[:] = values[: self.small, None]
        found[edge:] = values[self.small :]
        return found

    def block_of(self, entries: Indexes) -> Indexes:
        """Return the place in ``blocks`` of each entry's block."""
        edge = self.small * HUGE_PAGES
        return np.where(entries < edge, entries // HUGE_PAGES, self.small + entries - edge)

    def hva_of(self, entries: Indexes) -> Indexes:
        """Return the address of each entry."""
        inside = np.where(entries < self.small * HUGE_PAGES, entries % HUGE_PAGES, 0)
        first = self.ram.hva - self.ram.hva % HUGE_BYTES
        hva: Indexes = first + self.blocks[self.block_of(entries)] * HUGE_BYTES + inside * PAGE_BYTES
        return hva

    def pace_of(self, node: int) -> npt.NDArray[np.float32] | None:
        """Return how often a second this node touches each entry that the windows still show touches of."""
        if self.codes is None:
            return None
        pace: npt.NDArray[np.float32] = PER_SECOND.astype(np.float32)[self.codes[node]]
        pace[self.touches[node] == 0] = 0
        return pace

    def only(self, wanted: Bools) -> "TouchedPages":
        """Return the same as if only the wanted entries were there."""
        return replace(self, node_index=np.where(wanted, self.node_index, np.int8(-1)).astype(np.int8))

    def units(self) -> Iterator[Units]:
        """Yield what can move, in chunks."""
        for start in range(0, len(self.heat), CHUNK_ENTRIES):
            part = slice(start, start + CHUNK_ENTRIES)
            there = np.flatnonzero(self.node_index[part] >= 0) + start
            huge = there >= self.small * HUGE_PAGES
            yield Units(there, huge, self.heat[there], self.node_index[there])


def touched_pages(pages: RangePages) -> TouchedPages | None:
    """Return what the history of the range tells, or None where its source does not see nodes."""
    if not pages.history:
        return None
    history = [_aligned(bits, pages.ram) for bits in pages.history]
    part = _Part.of(pages, history)
    touches, seen = part.touches(history)
    wrote = np.zeros_like(seen)
    for window, bits in enumerate(history):
        wrote |= part.marks(_anybody(bits.written, bits.accessed)) << window
    return TouchedPages(
        pages.ram,
        np.concatenate([part.small, part.huge]),
        len(part.small),
        len(history),
        part.pages(pages.heat),
        part.pages(pages.node_index, -1),
        touches,
        seen,
        wrote,
        any(bits.written is None for bits in history),
        pages.sampled,
        tuple(part.hits(hits) for hits in pages.counted),
        tuple(part.entries(some)[0] for some in pages.text),
        np.stack([part.pages(row) for row in pages.pace.codes]) if pages.pace else None,
    )


@dataclass(frozen=True)
class _Part:
    """Blocks of a range that begins ``offset`` pages into its first one: of small pages, and huge ones."""

    offset: int
    small: Indexes
    huge: Indexes

    @classmethod
    def of(cls, pages: RangePages, history: list[NodeBits]) -> "_Part":
        """Return the blocks of which anything was seen; all of them if the source samples."""
        ram, offset = pages.ram, _offset(pages.ram)
        count = -(-(offset + ram.npages) // HUGE_PAGES)
        seen = np.full(count, pages.sampled, np.bool_)
        for row in (row for bits in history for row in bits.accessed):
            seen[(np.flatnonzero(row) + offset // WORD_PAGES) // BLOCK_WORDS] = True
        for some in (*(hits.pages for hits in pages.counted), *pages.text):
            seen[(some + offset) // HUGE_PAGES] = True
        number, huge = np.arange(count), pages.huge[:count] != 0
        whole = (number * HUGE_PAGES >= offset) & ((number + 1) * HUGE_PAGES <= offset + ram.npages)
        return cls(offset, np.flatnonzero(seen & ~huge), np.flatnonzero(seen & huge & whole))

    def touches(self, history: list[NodeBits]) -> tuple[Bytes, Bytes]:
        """Return in how many windows each node touched each entry [N + 1, E], and in which anybody did."""
        size = len(self.small) * HUGE_PAGES + len(self.huge)
        touches = np.zeros((len(history[0].accessed), size), np.uint8)
        seen = np.zeros(size, np.uint8)
        for window, bits in enumerate(history):
            for node, row in enumerate(bits.accessed):
                marks = self.marks(row)
                touches[node] += marks
                seen |= marks << window
        return touches, seen

    def marks(self, words: Bits) -> Bytes:
        """Return 1 for each entry that has a bit; words as of an aligned range."""
        lead = self.offset // WORD_PAGES
        small = _rows(words, self.small, BLOCK_WORDS, lead)
        huge = _rows(words, self.huge, BLOCK_WORDS, lead).any(axis=1)
        return np.concatenate([unpacked(small.reshape(-1), small.size * WORD_PAGES), huge.astype(np.uint8)])

    def pages(self, array: npt.NDArray[T], missing: int = 0) -> npt.NDArray[T]:
        """Return for each entry what holds for its page, or the first one of a huge page."""
        small = _rows(array, self.small, HUGE_PAGES, self.offset, missing)
        return np.concatenate([small.reshape(-1), array[self.huge * HUGE_PAGES - self.offset]])

    def hits(self, hits: NodeHits) -> NodeHits:
        """Return the counted accesses by entry."""
        entries, there = self.entries(hits.pages)
        return NodeHits(entries, hits.rows[there])

    def entries(self, some: Indexes) -> tuple[Indexes, Bools]:
        """Return the entries of pages, and which of the pages have one."""
        block, inside = np.divmod(some + self.offset, HUGE_PAGES)
        among_small, among_huge = np.isin(block, self.small), np.isin(block, self.huge)
        small = np.searchsorted(self.small, block) * HUGE_PAGES + inside
        huge = len(self.small) * HUGE_PAGES + np.searchsorted(self.huge, block)
        there = among_small | among_huge
        return np.where(among_small, small, huge)[there], there


def _rows(array: npt.NDArray[T], blocks: Indexes, width: int, lead: int, missing: int = 0) -> npt.NDArray[T]:
    """Return the ``width`` items of each block; block 0 began ``lead`` items before the array."""
    found = np.full((len(blocks), width), missing, array.dtype)
    start = blocks * width - lead
    whole = (start >= 0) & (start + width <= len(array))
    first = -lead % width
    rows = array[first : first + (len(array) - first) // width * width].reshape(-1, width)
    found[whole] = rows[start[whole] // width]
    for index in np.flatnonzero(~whole).tolist():
        begin, end = max(int(start[index]), 0), min(int(start[index]) + width, len(array))
        found[index, begin - start[index] : end - start[index]] = array[begin:end]
    return found


def _anybody(written: Bits | None, accessed: Bits) -> Bits:
    """Return what anybody wrote, nothing where it could not be told."""
    anybody: Bits = np.zeros_like(accessed[0]) if written is None else np.bitwise_or.reduce(written, axis=0)
    return anybody


def _aligned(bits: NodeBits, ram: RamRange) -> NodeBits:
    """Return the bits as of a range that begins with a word of its block; QEMU's do."""
    before = _offset(ram) % WORD_PAGES
    if not before:
        return bits
    written = None if bits.written is None else _shifted(bits.written, before, ram.npages)
    return NodeBits(_shifted(bits.accessed, before, ram.npages), written)


def _shifted(rows: Bits, before: int, npages: int) -> Bits:
    count = -(-(before + npages) // WORD_PAGES)
    pages = np.zeros((len(rows), count * WORD_PAGES), np.uint8)
    for row, words in zip(pages, rows, strict=True):
        row[before : before + npages] = unpacked(words, npages)
    return np.packbits(pages, axis=1, bitorder="little").view(np.uint64)


def _offset(ram: RamRange) -> int:
    return ram.hva % HUGE_BYTES // PAGE_BYTES
