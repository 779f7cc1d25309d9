"""From which node did each page come, in few bytes?

``PageRuns`` is what the journal writes: runs of neighbouring pages with one node.  ``OriginMap`` folds
many of them into the earliest node per page, two bytes per page of each 64 MiB block that was touched.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.topology.guest import PAGE_BYTES

BLOCK_PAGES = 16384
"""Pages in one block of the OriginMap: 64 MiB."""

NOWHERE = -1
_MOST_RUNS, _MOST_PAGES = 1 << 24, 1 << 28
"""Of one record that is believed: memory of a TiB.  What is written has a batch, or a block, in one."""


@dataclass(frozen=True)
class PageRuns:
    """Runs of pages, ascending: ``hva`` (uint64, bytes), ``npages`` (uint32), ``nid`` (int16) per run."""

    hva: npt.NDArray[np.uint64]
    npages: npt.NDArray[np.uint32]
    nid: npt.NDArray[np.int16]

    @property
    def total_pages(self) -> int:
        """Return the number of 4 KiB pages in all runs."""
        return int(self.npages.sum(dtype=np.int64))

    def page_frames(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int16]]:
        """Return hva / 4096 and nid of every single page."""
        counts = self.npages.astype(np.int64)
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        first = self.hva // np.uint64(PAGE_BYTES)
        return np.repeat(first, counts) + offsets.astype(np.uint64), np.repeat(self.nid, counts)

    def encoded(self) -> bytes:
        """Return the runs as bytes: count (u64), then distances, lengths, nids as columns, deflated.

        Regular patterns (an interleaved guest) have constant columns, which deflate to almost nothing.
        """
        columns = (np.diff(self.hva, prepend=np.uint64(0)), self.npages, self.nid)
        raw = b"".join(column.astype(column.dtype.newbyteorder("<")).tobytes() for column in columns)
        return len(self.hva).to_bytes(8, "little") + zlib.compress(raw, 1)


def encode_pages(
    hva: npt.NDArray[np.uint64], npages: npt.NDArray[np.integer], nid: npt.NDArray[np.integer]
) -> PageRuns:
    """Return pages in any order (``npages`` 512 = a whole huge page) as the fewest runs."""
    order = np.argsort(hva, kind="stable")
    hva, lengths, nids = hva[order], npages[order].astype(np.int64), nid[order].astype(np.int16)
    if not len(hva):
        return PageRuns(hva, lengths.astype(np.uint32), nids)
    ends = hva + (lengths * PAGE_BYTES).astype(np.uint64)
    starts = np.flatnonzero(np.concatenate(([True], (hva[1:] != ends[:-1]) | (nids[1:] != nids[:-1]))))
    return PageRuns(hva[starts], np.add.reduceat(lengths, starts).astype(np.uint32), nids[starts])


def decode_runs(data: bytes) -> PageRuns:
    """Return the runs that ``PageRuns.encoded`` wrote; ValueError for anything else."""
    count = int.from_bytes(data[:8], "little")
    if count > _MOST_RUNS:
        raise ValueError(f"{count} page runs are too many")
    unpacking = zlib.decompressobj()
    try:
        raw = unpacking.decompress(data[8:], count * 14 + 1)
    except zlib.error as err:
        raise ValueError("page runs are damaged") from err
    if not unpacking.eof:
        raise ValueError("page runs are damaged")
    if len(raw) != count * 14:
        raise ValueError("page runs have the wrong length")
    distances = np.frombuffer(raw, "<u8", count)
    npages = np.frombuffer(raw, "<u4", count, count * 8).astype(np.uint32)
    nid = np.frombuffer(raw, "<i2", count, count * 12).astype(np.int16)
    runs = PageRuns(np.cumsum(distances, dtype=np.uint64), npages, nid)
    if runs.total_pages > _MOST_PAGES:
        raise ValueError(f"page runs of {runs.total_pages} pages are too long")
    return runs


class OriginMap:
    """The earliest known node of each page; later news about a page that is known change nothing."""

    def __init__(self) -> None:
        self._blocks: dict[int, npt.NDArray[np.int16]] = {}

    def add(self, runs: PageRuns) -> None:
        """Take in ``runs`` where nothing is known yet."""
        frames, nids = runs.page_frames()
        blocks = frames // np.uint64(BLOCK_PAGES)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            known = self._blocks.get(block)
            if known is None:
                known = self._blocks[block] = np.full(BLOCK_PAGES, NOWHERE, np.int16)
            index = (frames[here] % np.uint64(BLOCK_PAGES)).astype(np.int64)
            new = known[index] == NOWHERE
            known[index[new]] = nids[here][new]

    def iter_runs(self) -> Iterator[PageRuns]:
        """Yield the origins of one block after the other, ascending."""
        for block in sorted(self._blocks):
            known = self._blocks[block]
            index = np.flatnonzero(known != NOWHERE).astype(np.uint64)
            hva = (index + np.uint64(block * BLOCK_PAGES)) * np.uint64(PAGE_BYTES)
            yield encode_pages(hva, np.ones(len(hva), np.uint32), known[index.astype(np.int64)])

    @property
    def total_pages(self) -> int:
        """Return how many pages have a known origin."""
        return sum(int(np.count_nonzero(known != NOWHERE)) for known in self._blocks.values())
