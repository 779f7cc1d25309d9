"""Which pages of a guest do samples of host frames tell of?  Sorted once a window, looked up chunk by chunk.

1. A sample is a frame, the row of its CPU's node, and whether it was a store.
2. A chunk's frames are looked up among those that were sampled, in one go for all rows: most pages have none.
3. If one page of a folio was sampled, its pages count as touched, as they do for bits; what is counted are
   the pages themselves.  Of hugetlb pages no heads are known: each 4 KiB counts for itself.

Cost: a search in the distinct sampled frames for each page of the chunk, and what follows from the samples.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vmplace.sampling.frame_nodes import Frames
from vmplace.sampling.page_arrays import Bits, Bools, Indexes, NodeIndexes
from vmplace.sampling.page_frames import FrameChunk

Found = tuple[Frames, NodeIndexes, Bools]
"""Samples: frame, 0 for none; row of the CPU's node; whether it was a store."""
NOTHING: Found = np.zeros(0, np.uint64), np.zeros(0, np.int8), np.zeros(0, np.bool_)


@dataclass(frozen=True)
class ChunkHits:
    """Samples of a chunk's pages, an entry each: the page (its index), its row, whether it was a store."""

    pages: Indexes
    rows: Indexes
    stores: Bools


@dataclass(frozen=True)
class SampledFrames:
    """All samples of memory in the order of their frames; ``frames`` are distinct, those of each begin at
    ``starts`` and end where the next ones begin."""

    frames: Frames
    starts: Indexes
    rows: Indexes
    stores: Bools

    @classmethod
    def of(cls, found: Iterable[Found]) -> "SampledFrames":
        """Return the samples in order, without those that have no frame."""
        frames, rows, stores = (np.concatenate(column) for column in zip(NOTHING, *found, strict=True))
        order = np.argsort(frames, kind="stable")
        order = order[np.searchsorted(frames[order], 1) :]
        distinct, starts = np.unique(frames[order], return_index=True)
        starts = np.append(starts, len(order))
        return cls(distinct, starts, rows[order].astype(np.int64), stores[order])

    def hits(self, chunk: FrameChunk) -> ChunkHits:
        """Return the samples of the chunk's pages."""
        if not len(self.frames):
            return ChunkHits(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
        at = np.minimum(np.searchsorted(self.frames, chunk.pfns), len(self.frames) - 1)
        sampled = np.flatnonzero(self.frames[at] == chunk.pfns)
        first, end = self.starts[at[sampled]], self.starts[at[sampled] + 1]
        count = end - first
        each = np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
        return ChunkHits(np.repeat(sampled, count), self.rows[each], self.stores[each])


def touched_by_row(chunk: FrameChunk, hits: ChunkHits, rows: int) -> tuple[Bools, Bools]:
    """Return which pages [rows, P] of the chunk each row touched, and which it wrote, whole folios."""
    folios, shape = _folios(chunk), (rows, len(chunk.pfns))
    answers = []
    for mine in (slice(None), hits.stores):
        marks = np.zeros(shape, np.bool_)
        pages = hits.pages[mine]
        marks[hits.rows[mine], pages if folios is None else folios[pages]] = True
        answers.append(marks if folios is None else marks[:, folios] & (chunk.pfns != 0))
    touched, written = answers
    return touched, written


def _folios(chunk: FrameChunk) -> Indexes | None:
    """Return which folio each page is part of, by number; None where each page is one of its own."""
    heads = np.where(chunk.heads == 0, chunk.pfns, chunk.heads)
    if np.array_equal(heads, chunk.pfns):
        return None
    return np.unique(heads, return_inverse=True)[1]


def add_bits(words: Bits, touched: Bools, first: int) -> None:
    """Set the bits of the pages [rows, P] that were touched; the first of them is page ``first``."""
    rows, pages = touched.shape
    before = first % 64
    padded = np.zeros((rows, -(-(before + pages) // 64) * 64), np.bool_)
    padded[:, before : before + pages] = touched
    more = np.packbits(padded, axis=1, bitorder="little").view(np.uint64)
    words[:, first // 64 : first // 64 + more.shape[1]] |= more
