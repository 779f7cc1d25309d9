"""Find the blocks of a range that were touched, and make the entries of touched_pages.py from them.

``most`` limits how many pages get an entry of their own.  Beyond it, in the least busy blocks, all pages of a
block are one entry.  Some of these pages, evenly taken, say who touches them and how often, on average, and
on which node most of them are.  Whether anybody touched or wrote a page is known of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vmplace import native
from vmplace.model.coarse_blocks import coarse_blocks, coarse_codes, most_on
from vmplace.model.pages import RangePages, SeenWindow
from vmplace.model.touched_pages import HUGE_PAGES, CountedWindows, TouchedPages
from vmplace.sampling.block_rows import BIT_ROW, BITS, BlockRows, numbers, used_and_uneven
from vmplace.sampling.page_arrays import Bools, Bytes, Indexes
from vmplace.sampling.page_frames import block_offset
from vmplace.sampling.sample import NodeHits


def touched_pages(pages: RangePages, most: int | None = None) -> TouchedPages | None:
    """Return what the history of the range tells, or None where its source does not see nodes.

    ``most``: about so many small pages have an entry each; None: all that differ.
    """
    if not pages.history:
        return None
    windows, part = pages.seen[: pages.history], _Part.of(pages, most)
    touches, newest, seen, wrote = part.seen_in(windows)
    node_index = part.bytes_of(pages.nodes).view(np.int8)
    codes = part.codes(pages.rate) if pages.rate else None
    if part.coarse_touches is not None and len(part.coarse):
        at = part.coarse_entries
        touches[:, at] = part.coarse_touches
        newest[:, at] = (part.coarse_touches > 0) & (seen[at] & 1)
        node_index[at] = most_on(pages, part.coarse, len(touches) - 1)
        if codes is not None and pages.rate:
            codes[:, at] = coarse_codes(pages.rate, part.coarse, pages.blocks)
    return TouchedPages(
        pages.ram,
        part.every,
        part.small,
        part.places(part.apart),
        part.places(part.whole),
        len(windows),
        node_index,
        touches,
        np.packbits(newest[:-1], axis=1),
        seen,
        wrote,
        any(window.written is None for window in windows),
        pages.sampled,
        part.counted(pages.counted),
        tuple(part.entries(some)[0] for some in pages.text),
        codes,
        part.coarse_entries,
    )


@dataclass(frozen=True)
class _Part:
    """Some of ``blocks``; the range begins ``offset`` pages into the first.

    ``nodes``: those that touched any, lest the others are asked.
    ``every``: ``small`` blocks of small pages, and then huge pages.  ``apart``: those whose pages have an
    entry each.  ``whole``: the others; ``coarse``: those of them whose pages differ, and in how many windows
    each node touched a page of them: ``coarse_touches``.
    """

    blocks: int
    offset: int
    nodes: list[int]
    every: Indexes
    small: int
    apart: Indexes
    whole: Indexes
    coarse: Indexes
    coarse_touches: Bytes | None

    @classmethod
    def of(cls, pages: RangePages, most: int | None) -> "_Part":
        """Return the blocks of which anything was seen; all of them if the source samples."""
        offset, blocks = block_offset(pages.ram), pages.blocks
        touched, differ = _history(pages)
        nodes: list[int] = np.flatnonzero(touched.any(axis=1)).tolist()
        used: Bools = np.logical_or(touched.any(axis=0), pages.sampled)
        for some in (_joined(pages.counted).pages, *pages.text):
            used[(some + offset) // HUGE_PAGES] = True
        inside, huge = np.ones(blocks, np.bool_), pages.huge[:blocks] != 0
        inside[:1] &= not offset
        inside[-1:] &= not (offset + pages.ram.npages) % HUGE_PAGES
        small, large = (used & ~huge).nonzero()[0], (used & huge & inside).nonzero()[0]
        alike = inside & ~differ
        apart = small[~alike[small] & inside[small]]
        count = len(small) - int(np.count_nonzero(alike[small]))
        coarse, touches = coarse_blocks(pages, apart, count, nodes, most)
        alike[coarse] = True
        together = alike[small]
        every, whole = np.concatenate([small, large]), np.concatenate([small[together], large])
        return cls(blocks, offset, nodes, every, len(small), small[~together], whole, coarse, touches)

    @cached_property
    def coarse_entries(self) -> Indexes:
        """Return the entries of the blocks whose pages are taken together though they differ."""
        few = self.whole[: self.small - len(self.apart)]
        entries: Indexes = len(self.apart) * HUGE_PAGES + np.searchsorted(few, self.coarse)
        return entries

    def places(self, some: Indexes) -> Indexes:
        """Return where these blocks are in ``every``."""
        return self._places[some]

    @cached_property
    def _places(self) -> Indexes:
        place = np.empty(self.blocks, np.int64)
        place[self.every] = np.arange(len(self.every))
        return place

    def seen_in(self, windows: tuple[SeenWindow, ...]) -> tuple[Bytes, Bytes, Bytes, Bytes]:
        """Return ``touches``, ``newest``, ``seen`` and ``wrote`` (TouchedPages)."""
        size = len(self.apart) * HUGE_PAGES + len(self.whole)
        touches, newest = np.zeros((2, windows[0].planes(self.blocks), size), np.uint8)
        seen = np.zeros(size, np.uint8)
        for node in self.nodes:
            marks = self.marks([window.accessed for window in windows], node)
            if marks is not None:
                touches[node] = BITS[marks]
                newest[node] = marks & 1
                seen |= marks
        wrote = self.marks([window.written or self._nothing for window in windows])
        return touches, newest, seen, np.zeros(size, np.uint8) if wrote is None else wrote

    def marks(self, windows: Sequence[BlockRows], plane: int = 0) -> Bytes | None:
        """Return a bit for each window and entry that has one; None where nothing has."""
        marks = np.empty(len(self.apart) * HUGE_PAGES + len(self.whole), np.uint8)
        rows, apart, whole = tuple(bits.parts for bits in windows), numbers(self.apart), numbers(self.whole)
        return marks if native.windows_marks(rows, self.blocks, plane, apart, whole, marks) else None

    @property
    def _nothing(self) -> BlockRows:
        """Return rows without a bit, for a window of which writes are not known."""
        return BlockRows.built(self.blocks, BIT_ROW, ())

    def bytes_of(self, rows: BlockRows, plane: int = 0) -> Bytes:
        """Return for each entry what holds for its page, or for the first one of a block."""
        at = plane * self.blocks
        return np.concatenate([rows.some(at + self.apart).reshape(-1), rows.value[at + self.whole]])

    def codes(self, rate: BlockRows) -> Bytes:
        """Return the rate of each entry by node [N, E]."""
        nodes = len(rate.value) // self.blocks
        return np.stack([self.bytes_of(rate, node) for node in range(nodes)])

    def counted(self, windows: Sequence[NodeHits]) -> CountedWindows:
        """Return the counted accesses by entry."""
        hits = _joined(windows)
        entries, there = self.entries(hits.pages)
        ends = np.cumsum([0, *(len(one.pages) for one in windows)])
        before = np.concatenate([[0], np.cumsum(there)])
        return CountedWindows(NodeHits(entries, hits.rows[there]), before[ends])

    def entries(self, some: Indexes) -> tuple[Indexes, Bools]:
        """Return the entries of pages, and which of the pages have one."""
        block, inside = np.divmod(some + self.offset, HUGE_PAGES)
        first, step = self._first_and_step
        there = first[block] >= 0
        return (first[block] + step[block] * inside)[there], there

    @cached_property
    def _first_and_step(self) -> tuple[Indexes, Indexes]:
        """Return the first entry of each block, -1 for none, and 1 where its pages have an entry each."""
        first, step = np.full(self.blocks, -1), np.zeros(self.blocks, np.int64)
        first[self.apart], step[self.apart] = np.arange(len(self.apart)) * HUGE_PAGES, 1
        first[self.whole] = len(self.apart) * HUGE_PAGES + np.arange(len(self.whole))
        return first, step


def _joined(windows: Sequence[NodeHits]) -> NodeHits:
    nothing = np.zeros(0, np.intp)
    return NodeHits.joined(windows) if windows else NodeHits(nothing, nothing)


def _history(pages: RangePages) -> tuple[Bools, Bools]:
    """Return which blocks each node touched [N + 1, B], and of which pages differ in what is known [B]."""
    windows = pages.seen[: pages.history]
    touched, uneven = used_and_uneven([window.accessed for window in windows])
    differ = uneven.reshape(-1, pages.blocks).any(axis=0) | pages.nodes.is_mixed
    written = [window.written for window in windows if window.written]
    if written:
        differ |= used_and_uneven(written)[1]
    for window in pages.seen[pages.history :]:
        differ |= ~window.alike(pages.blocks)
    if pages.rate:
        differ |= pages.rate.is_mixed.reshape(-1, pages.blocks).any(axis=0)
    for some in pages.text:
        differ[(some + block_offset(pages.ram)) // HUGE_PAGES] = True
    return touched.reshape(-1, pages.blocks), differ
