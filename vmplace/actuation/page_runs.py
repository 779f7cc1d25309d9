"""Origins of moved pages, and where vmplace put them, in few bytes.

``PageRuns`` is what the journal writes: runs of neighbouring pages with one node.  ``OriginMap`` folds many
moves into three nodes per page, six bytes per page of each 64 MiB block that was touched.
"""

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.topology.guest import PAGE_BYTES

BLOCK_PAGES = 16384
"""Pages in one block of the OriginMap: 64 MiB."""

NOWHERE = -1
_MOST_RUNS = _MOST_PAGES = 1 << 22
"""Of one record that is believed: 16 GiB.  What is written has a chunk of 16 MiB, or a block, in one."""


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
        ends = np.cumsum(self.npages, dtype=np.uint64)
        shift = self.hva // np.uint64(PAGE_BYTES) - (ends - self.npages)
        frames = np.arange(self.total_pages, dtype=np.uint64) + np.repeat(shift, self.npages)
        return frames, np.repeat(self.nid, self.npages)

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
    return _joined(hva[order], npages[order].astype(np.int64), nid[order].astype(np.int16))


def _joined(
    hva: npt.NDArray[np.uint64], lengths: npt.NDArray[np.int64], nids: npt.NDArray[np.int16]
) -> PageRuns:
    """Return ascending pages as the fewest runs."""
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


@dataclass(frozen=True)
class PageOrigins:
    """Single pages, ascending: ``hva`` (uint64, bytes) and three nodes (int16) of each.

    ``nid``: where it was before vmplace moved it.  ``via``: where it was before the last move.  ``to``: where
    that move was to put it; NOWHERE in what an earlier version wrote.  A move that failed, or was not made
    any more, leaves a page at ``via``.
    """

    hva: npt.NDArray[np.uint64]
    nid: npt.NDArray[np.int16]
    via: npt.NDArray[np.int16]
    to: npt.NDArray[np.int16]

    def where(self, which: npt.NDArray[np.bool_]) -> "PageOrigins":
        """Return some of the pages."""
        return PageOrigins(self.hva[which], self.nid[which], self.via[which], self.to[which])

    def are_ours(self, found: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Tell which pages are on nodes that vmplace may have put them on, of those ``found``."""
        return _follows(found, self.nid, self.via, self.to)

    def steps(self) -> Iterator[tuple[PageRuns, PageRuns]]:
        """Yield the fewest moves (from, to) that lead to the same."""
        again = self.via != self.nid
        yield self._runs(self.nid), self._runs(np.where(again, self.via, self.to))
        if again.any():
            more = self.where(again)
            yield more._runs(more.via), more._runs(more.to)

    def _runs(self, nid: npt.NDArray[np.int16]) -> PageRuns:
        return _joined(self.hva, np.ones(len(self.hva), np.int64), nid)


def _follows(
    found: npt.NDArray[np.integer],
    nid: npt.NDArray[np.int16],
    via: npt.NDArray[np.int16],
    to: npt.NDArray[np.int16],
) -> npt.NDArray[np.bool_]:
    """Tell where nobody but vmplace need have moved a page for it to be on the node ``found``."""
    follows: npt.NDArray[np.bool_] = (to == NOWHERE) | (found == to) | (found == via) | (found == nid)
    return follows


def _reached(index: npt.NDArray[np.int64]) -> slice | npt.NDArray[np.int64]:
    """Return what selects the same: a slice, which is much faster, of neighbours, as a huge page has."""
    is_one_run = bool((index[1:] - index[:-1] == 1).all())
    return slice(int(index[0]), int(index[-1]) + 1) if is_one_run and len(index) else index


class OriginMap:
    """Where each page came from: what is known of one stays until somebody else moves it."""

    def __init__(self) -> None:
        self._blocks: dict[int, npt.NDArray[np.int16]] = {}

    def add(self, runs: PageRuns, to: PageRuns | None = None) -> None:
        """Take in a move of the pages in ``runs``, to the nodes in ``to`` if these were noted.

        Raises ValueError if these are other pages.
        """
        frames, nids = runs.page_frames()
        to_frames, to_nids = to.page_frames() if to else (frames, np.full(len(frames), NOWHERE, np.int16))
        if not np.array_equal(frames, to_frames):
            raise ValueError("pages came from and went to are not the same")
        blocks = frames // np.uint64(BLOCK_PAGES)
        index = (frames % np.uint64(BLOCK_PAGES)).astype(np.int64)
        edges = (np.flatnonzero(blocks[1:] != blocks[:-1]) + 1).tolist()
        for first, end in itertools.pairwise((0, *edges, len(blocks)) if len(blocks) else ()):
            here = slice(first, end)
            self._add_to(int(blocks[first]), index[here], nids[here], to_nids[here])

    def _add_to(
        self,
        block: int,
        index: npt.NDArray[np.int64],
        nids: npt.NDArray[np.int16],
        to: npt.NDArray[np.int16],
    ) -> None:
        known = self._blocks.get(block)
        if known is None:
            known = self._blocks[block] = np.full((3, BLOCK_PAGES), NOWHERE, np.int16)
        where = _reached(index)
        was, via, last = known[:, where]
        is_known = was != NOWHERE
        first = nids
        if is_known.any():
            first = np.where(is_known & _follows(nids, was, via, last), was, nids)
        for row, value in zip(known, (first, nids, to), strict=True):
            row[where] = value

    def iter_pages(self) -> Iterator[PageOrigins]:
        """Yield the pages of one block after the other, ascending."""
        for block in sorted(self._blocks):
            known = self._blocks[block]
            index = np.flatnonzero(known[0] != NOWHERE)
            hva = (index.astype(np.uint64) + np.uint64(block * BLOCK_PAGES)) * np.uint64(PAGE_BYTES)
            yield PageOrigins(hva, *known[:, _reached(index)])

    def iter_runs(self) -> Iterator[PageRuns]:
        """Yield the nodes that pages were on before vmplace, block after block."""
        for pages in self.iter_pages():
            yield _joined(pages.hva, np.ones(len(pages.hva), np.int64), pages.nid)

    @property
    def is_empty(self) -> bool:
        """Tell whether no page has a known origin, without counting."""
        return not self._blocks

    @property
    def total_pages(self) -> int:
        """Return how many pages have a known origin."""
        return sum(int(np.count_nonzero(known[0] != NOWHERE)) for known in self._blocks.values())
