"""Where is each page of a guest, who touched it in the last windows, and how hot is it?

State is 2M-first (block_rows.py): what all 512 pages of a block have in common costs the block a few bytes.
Where pages differ, a page takes at most: a bit for each window and node that touched it, a bit for each
window in which it was written, for ``HISTORY_WINDOWS``; a bit for each older window; a byte for its node.
With four nodes and what blocks take that is 4 bytes.  What a source cannot see takes nothing.

Heat is the last ``HEAT_WINDOWS`` windows, the newest one the highest bit: it halves each window and gains 128
when the page was touched, as kMAF and DAMON age theirs, so it orders pages by how recently and how often they
were seen; accessed bits cannot count within a window.  Where they are read several times a window there is a
byte more per node and page that it touches (page_rates.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.model.units import CHUNK_BLOCKS, CHUNK_RUNS, Units, portions
from vmplace.sampling.block_rows import BIT_ROW, BITS, BYTE_ROW, BlockRows, chunks, numbers
from vmplace.sampling.frame_nodes import UNKNOWN
from vmplace.sampling.page_arrays import Bools, Bytes, Indexes, NodeIndexes
from vmplace.sampling.page_frames import block_offset
from vmplace.sampling.sample import NodeHits
from vmplace.topology.guest import PAGE_BYTES, RamRange

Counts = npt.NDArray[np.int64]

CHUNK_BIT_ROWS = 1 << 10

HEAT_WINDOWS = 7
HISTORY_WINDOWS = 4
"""How long it is remembered who touched a page, and whether it was written."""

SAMPLED_WINDOWS, SAMPLED_S = 68, 120.0
"""So many windows, and seconds, samples are kept where nothing else tells (remembered.py)."""
SAMPLES_KEPT, KEPT_A_BLOCK = 1 << 16, 4
"""Beyond HISTORY_WINDOWS no more than so many of a guest, or for each of its blocks; 16 bytes each."""

TEXT_WINDOWS = 16
"""Sights of code are few, and kept for longer: code stays code."""

HOT, HOTTEST = 128, 256 - (1 << 8 - HEAT_WINDOWS)
"""Heat of a page touched in the last window is at least the first; in all of them, the second."""


@dataclass(frozen=True)
class SeenWindow:
    """What one window showed of a range, a bit per page.

    ``accessed``: a plane for each node, and a last one for nodes that are not known; from a source that does
    not see nodes a single one, of anybody.  ``written``: by anybody; None where that is not known.
    """

    accessed: BlockRows
    written: BlockRows | None = None

    def planes(self, blocks: int) -> int:
        """Return how many planes there are of a range of so many blocks."""
        return len(self.accessed.value) // blocks

    def anybody(self, some: Indexes, blocks: int) -> Bytes:
        """Return the rows [n, 64] of some of the range's blocks: touched by whom it may be."""
        found = self.accessed.some(some)
        for plane in range(1, self.planes(blocks)):
            rows = plane * blocks + some
            # Most memory is used by few nodes.
            if self.accessed.any_used(rows):
                found |= self.accessed.some(rows)
        return found

    def first(self, blocks: int) -> Bytes:
        """Return 1 for each block whose first page anybody touched."""
        touched: Bytes = np.bitwise_or.reduce(self.accessed.value.reshape(-1, blocks), axis=0) & 1
        return touched

    def alike(self, blocks: int) -> Bools:
        """Return of which blocks each page was touched, or none."""
        value, even = self.accessed.value.reshape(-1, blocks), self.accessed.is_even.reshape(-1, blocks)
        every, nobody = even & (value != 0), even & (value == 0)
        return np.asarray(every.any(axis=0) | nobody.all(axis=0), np.bool_)

    def used(self, blocks: int) -> Bools:
        """Return of which blocks anything was seen."""
        return np.asarray(self.accessed.is_used.reshape(-1, blocks).any(axis=0), np.bool_)

    def by_anybody(self, blocks: int) -> "SeenWindow":
        """Return the same without nodes and writes."""
        if self.planes(blocks) == 1:
            return SeenWindow(self.accessed)
        used = chunks(np.flatnonzero(self.used(blocks)), CHUNK_BIT_ROWS)
        parts = ((some, self.anybody(some, blocks)) for some in used)
        return SeenWindow(BlockRows.built(blocks, BIT_ROW, parts))


@dataclass(frozen=True)
class RangePages:
    """Page statistics of one RAM range, by 2 MiB block, counted from ``ram.hva`` rounded down to 2 MiB.

    ``nodes``: index of each page's node, a byte; -1 where it is not present, or not known.  ``huge``: 1 for
    each block that a huge page backs.
    ``seen``: the last windows, newest first.  ``history``: so many of these know nodes.
    ``sampled``: the source sees some touches only.  ``counted`` and ``text``, as in ``RangeSample``, of the
    last windows, newest first; empty where no source tells.  ``rate``: codes (page_rates.py), a plane for
    each node; None until bits were read several times in a window.
    ``stored``: how many windows ago a store was sampled in each block, 255: longer, where samples alone tell.
    ``settled``: index of a node whose pages are no units: blocks that lie there as a whole are not looked at.
    """

    ram: RamRange
    nodes: BlockRows
    huge: Bytes
    seen: tuple[SeenWindow, ...] = ()
    history: int = 0
    sampled: bool = False
    counted: tuple[NodeHits, ...] = ()
    text: tuple[Indexes, ...] = ()
    rate: BlockRows | None = None
    stored: Bytes | None = None
    settled: int = UNKNOWN

    @property
    def blocks(self) -> int:
        """Return how many blocks the range has a part of."""
        return len(self.nodes.value)

    @property
    def nbytes(self) -> int:
        """Return the memory that the statistics take."""
        rows = [self.nodes, *(one.accessed for one in self.seen), self.rate]
        rows += [one.written for one in self.seen]
        sparse = [*(hits.pages for hits in self.counted), *(hits.rows for hits in self.counted), *self.text]
        return self.huge.nbytes + sum(one.nbytes for one in (*rows, *sparse, self.stored) if one is not None)

    @property
    def present(self) -> int:
        """Return how many 4 KiB pages have a known node."""
        every = np.arange(self.blocks)
        return sum(int(np.count_nonzero(self.nodes_of(some) >= 0)) for some in chunks(every, CHUNK_BLOCKS))

    def nodes_of(self, some: Indexes) -> NodeIndexes:
        """Return the node indexes of the pages of some blocks [n, 512]."""
        return self.nodes.some(some).view(np.int8)

    def heat_of(self, some: Indexes) -> Bytes:
        """Return the heat of the pages of some blocks [n, 512]."""
        heat = np.empty((len(some), BYTE_ROW), np.uint8)
        oldest_first = tuple(window.accessed.parts for window in reversed(self.seen))
        native.windows_marks(oldest_first, self.blocks, -1, numbers(some), numbers(some[:0]), heat)
        return heat << np.uint8(8 - len(self.seen))

    def first_heat(self) -> Bytes:
        """Return the heat of the first page of each block: that of huge pages."""
        heat = np.zeros(self.blocks, np.uint8)
        for bit, window in enumerate(self.seen):
            heat |= window.first(self.blocks) << (7 - bit)
        return heat

    def part(self, start: int, stop: int) -> tuple[Bytes, NodeIndexes]:
        """Return heat and node index of the pages from ``start`` to before ``stop``."""
        before = block_offset(self.ram)
        some = np.arange((start + before) // BYTE_ROW, -(-(stop + before) // BYTE_ROW))
        first = start + before - int(some[0]) * BYTE_ROW if len(some) else 0
        cut = slice(first, first + stop - start)
        return self.heat_of(some).reshape(-1)[cut], self.nodes_of(some).reshape(-1)[cut]

    def units(self) -> Iterator[Units]:
        """Yield what can move, in chunks: small pages, then huge ones whose first page is in the range."""
        asked, is_huge = self._asked(), self.huge[: self.blocks] != 0
        if not asked.any():
            return
        alike, heat = self._are_alike(), self.first_heat()
        whole = asked & is_huge
        whole[0] &= not block_offset(self.ram)
        for some in portions(np.flatnonzero(asked & ~is_huge), alike):
            together = self._units_of(some[alike[some]], heat, huge=False)
            yield together.joined(self._small_units(some[~alike[some]]))
        for some in chunks(np.flatnonzero(whole), CHUNK_RUNS):
            yield self._units_of(some, heat, huge=True)

    def _small_units(self, some: Indexes) -> Units:
        """Return the units of some blocks of small pages."""
        return Units.of_pages(self._hva_of(some), self.heat_of(some), self.nodes_of(some), self.settled)

    def _units_of(self, some: Indexes, heat: Bytes, *, huge: bool) -> Units:
        """Return the units of some blocks whose pages are alike; ``heat`` is of all blocks."""
        nodes = self.nodes.value[some].view(np.int8)
        return Units.of_blocks(self._hva_of(some), heat[some], nodes, self.settled, huge=huge)

    def _are_alike(self) -> Bools:
        """Return of which blocks all pages lie on one node and are equally hot."""
        alike = ~self.nodes.is_mixed
        for window in self.seen:
            alike &= window.alike(self.blocks)
        return alike

    def _hva_of(self, some: Indexes) -> Indexes:
        """Return the address of some blocks."""
        hva: Indexes = self.ram.hva + (some * BYTE_ROW - block_offset(self.ram)) * PAGE_BYTES
        return hva

    def elsewhere(self, node: int) -> "RangePages":
        """Return the same, whose units are the pages that are not on this node."""
        return replace(self, settled=node)

    def _asked(self) -> Bools:
        """Return which blocks may have units."""
        where = self.nodes.value.view(np.int8)
        asked: Bools = self.nodes.is_mixed | ((where != UNKNOWN) & (where != self.settled))
        return asked

    def by_node(self, nodes: int, *, hot_only: bool = False) -> Counts:
        """Return the number of 4 KiB pages on each node index below ``nodes``.

        By comparing: np.bincount would make eight bytes of each page's one.
        """
        mixed = self.nodes.is_mixed
        every = np.bincount(self.nodes.value[~mixed], minlength=256) * BYTE_ROW
        total = self._hot_alike(~mixed) if hot_only else every
        for some in chunks(np.flatnonzero(mixed), CHUNK_BLOCKS):
            index = self.nodes_of(some).reshape(-1)
            hot = np.unpackbits(self._hot(some), bitorder="little").view(np.bool_) if hot_only else np.True_
            total[:nodes] += [np.count_nonzero((index == node) & hot) for node in range(nodes)]
        return total[:nodes]

    def _hot_alike(self, rows: Bools) -> Counts:
        """Return how many hot pages these blocks have on each node [256]."""
        total = np.zeros(256, np.int64)
        for some in chunks(np.flatnonzero(rows), CHUNK_BIT_ROWS):
            hot = self._hot(some)
            # Most blocks have no hot page.
            used = hot.view(np.uint64).any(axis=1)
            held = BITS[hot[used]].sum(axis=1)
            total += np.bincount(self.nodes.value[some[used]], held, 256).astype(np.int64)
        return total

    def _hot(self, some: Indexes) -> Bytes:
        """Return bits [n, 64] of the pages of some blocks that were touched in the last window."""
        nothing = np.zeros((len(some), BIT_ROW), np.uint8)
        return self.seen[0].anybody(some, self.blocks) if self.seen else nothing


@dataclass(frozen=True)
class GuestPages:
    """Page statistics of one guest after ``windows`` windows; node indexes are those of ``nids``.

    ``lengths_s``: how long the last windows were, newest first, and ``ended_ns``: when they ended, by the
    source's clock; empty where that is not known.
    """

    guest: str
    nids: tuple[int, ...]
    windows: int
    ranges: tuple[RangePages, ...]
    lengths_s: tuple[float, ...] = ()
    ended_ns: tuple[int, ...] = ()

    def pages_by_node(self, *, hot_only: bool = False) -> dict[int, int]:
        """Return the number of 4 KiB pages on each node, only those of the last window if ``hot_only``."""
        total = np.zeros(len(self.nids), np.int64)
        for pages in self.ranges:
            total += pages.by_node(len(self.nids), hot_only=hot_only)
        return dict(zip(self.nids, total.tolist(), strict=True))
