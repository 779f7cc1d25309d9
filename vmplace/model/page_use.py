"""Who uses each page: one node alone, or several, and does anybody write?  From the last windows of a source
that sees nodes.

A page that several nodes touched is shared: that is certain.  That one node alone touched a page says little
if the page was touched once or twice: of a table that four nodes read at random, most pages look so.  What it
means is learnt from the pages around it.

1. A page touched in ``CERTAIN_WINDOWS`` windows by one node is that node's.
2. One touched less often is that node's if most pages around it that were touched at least twice have one
   node each; else it is shared, too.
3. A page that nobody touched goes with the pages around it, if enough of them were: to the node that uses
   most of them (kMAF, equation 6), or shared with them.
4. It counts as written if a write was seen; and if more than one in 20 of the pages around it without a
   write is likely to have been spared by chance (Carrefour replicates at 95 % reads).  Where pages are
   written in each window or never, the others are read only; where writes go to and fro, all are written.

Around it: in the same 2 MiB block, or in the whole range where too few pages of the block were touched twice.
A source that samples is judged otherwise (sampled_use.py); several at once by fused_use.py.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vmplace.model.pages import RangePages
from vmplace.sampling.sample import Bytes, Indexes, NodeIndexes, unpacked
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, RamRange

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
T = TypeVar("T", bound=np.generic)
HUGE_PAGES = HUGE_BYTES // PAGE_BYTES
CERTAIN_WINDOWS = 3
"""By chance, one of four nodes makes three touches of a page in a row in 6 of 100 cases, two in 25."""
LEAST_PAGES = 8
"""Fewer pages do not speak for their block: what they say changes from window to window."""
WRITES_RATIO = 0.05
IN_USE_RATIO = 0.25


@dataclass(frozen=True)
class PageUse:
    """One entry per 4 KiB page; a page in a huge page has the answer of the whole.

    ``owner``: index of the one node that uses the page, -1 where none or several do.  ``shared``: several
    nodes do, or one that is not known.  ``written``: somebody writes it, or it could not be told.
    ``in_use``: it was touched, or a quarter of the pages in its block were.  ``unsure``: it counts as written
    because of the pages around it alone, and was not seen for long enough to know better.
    """

    owner: NodeIndexes
    shared: Bools
    written: Bools
    in_use: Bools
    unsure: Bools


@dataclass(frozen=True)
class Seen:
    """What was seen of each page: the one node that touched it, or -1; in how many windows; if written."""

    alone: NodeIndexes
    windows: Bytes
    written: Bools

    @property
    def touched(self) -> Bools:
        return self.windows > 0

    @property
    def several(self) -> Bools:
        return self.touched & (self.alone < 0)


def page_use(pages: RangePages, nodes: int) -> PageUse | None:
    """Return what the history of the range tells, or None where its source does not see nodes."""
    if not pages.history:
        return None
    ram, seen = pages.ram, seen_pages(pages, nodes)
    touched, certain = seen.touched, seen.windows >= CERTAIN_WINDOWS
    private = _are_private(ram, seen)
    owner = np.where(certain | of_pages(private, ram), seen.alone, np.int8(-1))
    owner = np.where(touched, owner, of_pages(np.where(private, _leader(ram, seen, nodes), -1), ram))
    seen_of_block = by_block(touched, ram)
    shared = np.where(touched, owner < 0, of_pages(~private & (seen_of_block >= LEAST_PAGES), ram))
    in_use = touched | of_pages(seen_of_block >= HUGE_PAGES * IN_USE_RATIO, ram)
    written = seen.written | of_pages(_are_written(pages, seen), ram)
    young = len(pages.history) < CERTAIN_WINDOWS
    unsure = written & ~seen.written & young
    return PageUse(owner.astype(np.int8), shared, written, in_use, unsure)


def seen_pages(pages: RangePages, nodes: int) -> Seen:
    """Return what the history of the range has of each page; it must not be empty."""
    npages = pages.ram.npages
    mask, windows = np.zeros(npages, np.uint32), np.zeros(npages, np.uint8)
    touched = np.bitwise_or.reduce([bits.accessed for bits in pages.history])
    for row in range(nodes + 1):
        mask |= unpacked(touched[row], npages).astype(np.uint32) << np.uint32(row)
    for bits in pages.history:
        windows += bits.anywhere(npages)
    written = _written(pages)
    for array, united in ((mask, np.bitwise_or), (windows, np.maximum), (written, np.bitwise_or)):
        unite_huge(pages, array, united)
    alone = np.full(npages, -1, np.int8)
    for index in range(nodes):
        alone[mask == 1 << index] = index
    return Seen(alone, windows, written != 0)


def _written(pages: RangePages) -> Bytes:
    """Return 1 for pages seen written in one of the windows, or all where a window could not tell."""
    rows = [bits.written for bits in pages.history]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return np.ones(pages.ram.npages, np.uint8)
    return unpacked(np.bitwise_or.reduce(np.bitwise_or.reduce(known), axis=0), pages.ram.npages)


def _are_private(ram: RamRange, seen: Seen) -> Bools:
    """Return for each block whether the pages in it have one node each, rather than several."""
    together = by_block(seen.several, ram)
    apart = by_block((seen.windows > 1) & (seen.alone >= 0), ram)
    of_range = bool(together.sum() <= apart.sum())
    return np.where(together + apart >= LEAST_PAGES, together <= apart, of_range)


def _leader(ram: RamRange, seen: Seen, nodes: int) -> NodeIndexes:
    """Return for each block the node that most pages in it belong to, -1 where it does not lead clearly."""
    counts = np.stack([by_block(seen.alone == index, ram) for index in range(nodes)])
    order = np.sort(counts, axis=0)
    second = order[-2] if nodes > 1 else np.zeros_like(order[-1])
    leads = (order[-1] >= LEAST_PAGES) & (order[-1] > 2 * second + 1)
    return np.where(leads, counts.argmax(axis=0), -1).astype(np.int8)


def _are_written(pages: RangePages, seen: Seen) -> Bools:
    """Return for each block whether more of its pages are written, unseen, than copies are worth.

    For each page that was seen written in w windows there are m / (1 - m) like it that were not, where
    m = (1 - f)^w, and f is how often pages are written once more.
    """
    spared = (1 - of_pages(_written_again(pages), pages.ram)) ** np.maximum(seen.windows, 1)
    like_it = np.where(seen.written & seen.touched, spared / (1 - spared), 0.0)
    unwritten = by_block(seen.touched & ~seen.written, pages.ram)
    many: Bools = sum_by_block(like_it, pages.ram) > WRITES_RATIO * unwritten
    return many


def _written_again(pages: RangePages) -> Floats:
    """Return for each block how often, after its first write, a page is written in a window with touches.

    Half a time of one is added to what was seen, so that it is neither 0 nor 1.
    """
    ram, npages = pages.ram, pages.ram.npages
    before, times, windows = np.zeros(npages, np.uint8), np.zeros(npages), np.zeros(npages)
    for bits in reversed(pages.history):
        wrote = np.zeros_like(before)
        if bits.written is not None:
            wrote = unpacked(np.bitwise_or.reduce(bits.written, axis=0), npages)
        times += before & wrote
        windows += before & (wrote | bits.anywhere(npages))
        before |= wrote
    again: Floats = (sum_by_block(times, ram) + 0.5) / (sum_by_block(windows, ram) + 1)
    return again


def by_block(pages: Bools, ram: RamRange) -> Counts:
    """Return how many of the pages are set in each 2 MiB block."""
    counts: Counts = _padded(pages, ram).sum(axis=1, dtype=np.int32)
    return counts


def sum_by_block(pages: npt.NDArray[np.floating] | Bytes, ram: RamRange) -> Floats:
    """Return the sum over the pages of each 2 MiB block."""
    sums: Floats = _padded(pages, ram).sum(axis=1, dtype=np.float64)
    return sums


def _padded(pages: npt.NDArray[T], ram: RamRange) -> npt.NDArray[T]:
    """Return the pages as rows of whole 2 MiB blocks, with zeros where the range has none."""
    offset = _offset(ram)
    padded = np.zeros(block_count(ram) * HUGE_PAGES, pages.dtype)
    padded[offset : offset + ram.npages] = pages
    return padded.reshape(-1, HUGE_PAGES)


def of_pages(blocks: npt.NDArray[T], ram: RamRange) -> npt.NDArray[T]:
    """Return for each page what holds for its block."""
    offset = _offset(ram)
    pages: npt.NDArray[T] = np.repeat(blocks, HUGE_PAGES)[offset : offset + ram.npages]
    return pages


def block_of_pages(pages: Indexes, ram: RamRange) -> Indexes:
    """Return the number of each page's 2 MiB block, as in ``by_block``."""
    blocks: Indexes = (pages + _offset(ram)) // HUGE_PAGES
    return blocks


def block_count(ram: RamRange) -> int:
    """Return how many 2 MiB blocks the range has a part of."""
    return -(-(_offset(ram) + ram.npages) // HUGE_PAGES)


def _offset(ram: RamRange) -> int:
    return ram.hva % HUGE_BYTES // PAGE_BYTES


def unite_huge(pages: RangePages, value: Bytes | npt.NDArray[np.uint32], united: np.ufunc) -> None:
    """Give all pages of each huge page what unites theirs, in place."""
    offset = _offset(pages.ram)
    for block in np.flatnonzero(pages.huge).tolist():
        inside = slice(max(block * HUGE_PAGES - offset, 0), (block + 1) * HUGE_PAGES - offset)
        if len(value[inside]):
            value[inside] = united.reduce(value[inside])
