"""Where is each page of a guest, and how hot is it?

State is flat: two bytes per 4 KiB page (heat, node index) and a byte per 2 MiB block.  Heat ages by
halving each window and gains 128 when the page was touched, so it orders pages by how recently and
how often they were seen; the sources of a stock kernel cannot count within a window.  Where bits are read
several times a window there is a byte more per page and node (page_pace.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.model.page_pace import Pace, begun_pace, go_on
from vmplace.sampling.sample import (
    Bools,
    Bytes,
    Indexes,
    NodeBits,
    NodeHits,
    NodeIndexes,
    RangeSample,
    SampleBatch,
)
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, RamRange

Counts = npt.NDArray[np.int64]
T = TypeVar("T")

CHUNK_PAGES = 1 << 16
UNIT_PAGES = 1 << 14

HISTORY_WINDOWS = 4
"""How long it is remembered who touched a page, and whether it was written: for each window a bit per page
and node, and one per page."""

COUNTED_WINDOWS = 16
"""Samples and sights of code are few, and kept for longer."""

HOT = 128
"""Heat of a page touched in the last window is at least this."""


@dataclass(frozen=True)
class Units:
    """What can move, each as a whole: index in the arrays, whether it is a huge page, heat, node index."""

    index: Indexes
    huge: Bools
    heat: Bytes
    node_index: NodeIndexes


@dataclass(frozen=True)
class RangePages:
    """Page statistics of one RAM range; arrays as in ``RangeSample``, ``heat`` one byte per 4 KiB page.

    ``history``: who touched the pages in the last windows, newest first; empty if the source sees no nodes.
    ``sampled``: the source sees some touches only.  ``counted`` and ``text``, as in ``RangeSample``, of the
    last windows, newest first; empty where no source tells.  ``pace``: None until bits were read several
    times in a window.
    """

    ram: RamRange
    heat: Bytes
    node_index: NodeIndexes
    huge: Bytes
    history: tuple[NodeBits, ...] = ()
    sampled: bool = False
    counted: tuple[NodeHits, ...] = ()
    text: tuple[Indexes, ...] = ()
    pace: Pace | None = None

    @property
    def present(self) -> int:
        """Return how many 4 KiB pages have a known node."""
        return int(np.count_nonzero(self.node_index >= 0))

    def hva_of(self, pages: Indexes) -> Indexes:
        """Return the address of each page, by its index in the arrays."""
        return self.ram.hva + pages * PAGE_BYTES

    def units(self) -> Iterator[Units]:
        """Yield what can move, in chunks: small pages, and huge ones whose first page is in the range."""
        offset = self.ram.hva % HUGE_BYTES // PAGE_BYTES
        for start in range(0, self.ram.npages, UNIT_PAGES):
            stop = min(start + UNIT_PAGES, self.ram.npages)
            block, inside = np.divmod(np.arange(start, stop) + offset, HUGE_BYTES // PAGE_BYTES)
            huge = self.huge[block] != 0
            unit = np.flatnonzero((self.node_index[start:stop] >= 0) & (~huge | (inside == 0)))
            yield Units(unit + start, huge[unit], self.heat[unit + start], self.node_index[unit + start])

    def by_node(self, nodes: int, *, hot_only: bool = False) -> Counts:
        """Return the number of 4 KiB pages on each node index below ``nodes``.

        In chunks, and by comparing: np.bincount would make eight bytes of each page's one.
        """
        total = np.zeros(nodes, np.int64)
        for start in range(0, len(self.node_index), CHUNK_PAGES):
            chunk = self.node_index[start : start + CHUNK_PAGES]
            hot = self.heat[start : start + CHUNK_PAGES] >= HOT if hot_only else np.True_
            total += [np.count_nonzero((chunk == index) & hot) for index in range(nodes)]
        return total


@dataclass(frozen=True)
class GuestPages:
    """Page statistics of one guest after ``windows`` windows; ``node_index`` entries index ``nids``."""

    guest: str
    nids: tuple[int, ...]
    windows: int
    ranges: tuple[RangePages, ...]

    def pages_by_node(self, *, hot_only: bool = False) -> dict[int, int]:
        """Return the number of 4 KiB pages on each node, only those of the last window if ``hot_only``."""
        total = np.zeros(len(self.nids), np.int64)
        for pages in self.ranges:
            total += pages.by_node(len(self.nids), hot_only=hot_only)
        return dict(zip(self.nids, total.tolist(), strict=True))


def absorbed(before: GuestPages | None, batch: SampleBatch) -> GuestPages:
    """Return the statistics after ``batch``; heat and pace of ``before`` are aged in place and handed on.

    A range that appeared, grew or shrank since ``before`` starts cold: its pages are other pages.
    """
    known = {(p.ram.hva, p.ram.npages): p for p in before.ranges} if before else {}
    sampled = batch.sight.sampled
    ranges = tuple(_absorbed_range(known.get((s.ram.hva, s.ram.npages)), s, sampled) for s in batch.ranges)
    known_paces = [
        (after.pace, sample.by_node)
        for after, sample in zip(ranges, batch.ranges, strict=True)
        if after.pace and sample.by_node and sample.by_node.early
    ]
    go_on(known_paces, batch.ended_ns - batch.started_ns, remembered=HISTORY_WINDOWS)
    return GuestPages(batch.guest, batch.nids, (before.windows if before else 0) + 1, ranges)


def _absorbed_range(before: RangePages | None, sample: RangeSample, sampled: bool) -> RangePages:
    heat = before.heat if before else np.zeros(sample.ram.npages, np.uint8)
    native.age_heat(heat, sample.accessed)
    if sample.by_node is None:
        return RangePages(sample.ram, heat, sample.node_index, sample.huge)
    newest = _remembered(sample.by_node)
    history = (newest, *(before.history if before else ()))[:HISTORY_WINDOWS]
    counted = _with_newest(sample.counted, before.counted if before else ())
    text = _with_newest(sample.text, before.text if before else ())
    pace = before.pace if before else None
    if pace is None and sample.by_node.early:
        pace = begun_pace(sample.ram.npages, len(sample.by_node.accessed) - 1)
    return RangePages(sample.ram, heat, sample.node_index, sample.huge, history, sampled, counted, text, pace)


def _remembered(bits: NodeBits) -> NodeBits:
    """Return what is asked of a window later: who touched, and whether anybody wrote.

    What was read early is in the pace.
    """
    written = None if bits.written is None else np.bitwise_or.reduce(bits.written, axis=0, keepdims=True)
    return NodeBits(bits.accessed, written)


def _with_newest(newest: T | None, before: tuple[T, ...]) -> tuple[T, ...]:
    return () if newest is None else (newest, *before)[:COUNTED_WINDOWS]
