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
   Where most pages touched since the first write of a block were written, too, its use has changed: that
   they were only read before says nothing.

Around it: in the same 2 MiB block, or in the whole range where too few pages of the block were touched twice.
A source that samples is judged otherwise (evidence.py); several at once by use_fused.py.
"""

from dataclasses import dataclass

import numpy as np

from vmplace.model.touched_pages import HUGE_PAGES, Floats, TouchedPages
from vmplace.sampling.block_rows import BITS
from vmplace.sampling.page_arrays import Bools, Bytes, NodeIndexes

CERTAIN_WINDOWS = 3
"""By chance, one of four nodes makes three touches of a page in a row in 6 of 100 cases, two in 25."""
LEAST_PAGES = 8
"""Fewer pages do not speak for their block: what they say changes from window to window."""
SINCE = np.array([(1 << value.bit_length()) - 1 for value in range(256)], np.uint8)
"""From windows as bits, 0 for the newest: the oldest of them and all after it."""
WRITES_RATIO = 0.05
IN_USE_RATIO = 0.25


@dataclass(frozen=True)
class PageUse:
    """One item per entry (touched_pages.py).

    ``owner``: index of the one node that uses the page, -1 where none or several do.  ``shared``: several
    nodes do, or one that is not known.  ``written``: somebody writes it, or that is not known.
    ``in_use``: it was touched, or a quarter of the pages in its block were.  ``unsure``: it counts as written
    because of the pages around it alone, and was not seen for long enough to know better.
    """

    owner: NodeIndexes
    shared: Bools
    written: Bools
    in_use: Bools
    unsure: Bools


@dataclass(frozen=True)
class EntryTouches:
    """What was seen of each entry: the one node that touched it, or -1; in how many windows; if written."""

    alone: NodeIndexes
    windows: Bytes
    written: Bools

    @property
    def touched(self) -> Bools:
        return self.windows > 0

    @property
    def several(self) -> Bools:
        return self.touched & (self.alone < 0)


def page_use(pages: TouchedPages) -> PageUse:
    """Return what bits tell of who uses the pages."""
    seen = seen_of(pages)
    touched, certain = seen.touched, seen.windows >= CERTAIN_WINDOWS
    private = _are_private(pages, seen)
    owner = _either(certain | pages.of_block(private), seen.alone, np.int8(-1))
    written = written_of(pages, seen.written)
    unsure = written & ~seen.written & (pages.windows < CERTAIN_WINDOWS)
    if touched.all():
        # Nothing has to be taken from the pages around.
        return PageUse(owner, owner < 0, written, touched, unsure)
    of_block = np.where(private, _leader(pages, seen), np.int8(-1)).astype(np.int8)
    owner = _either(touched, owner, pages.of_block(of_block))
    seen_of_block = pages.by_block(touched)
    around = pages.of_block(~private & (seen_of_block >= LEAST_PAGES))
    shared = touched & (owner < 0) | ~touched & around
    in_use = touched | pages.of_block(seen_of_block >= HUGE_PAGES * IN_USE_RATIO)
    return PageUse(owner, shared, written, in_use, unsure)


def seen_of(pages: TouchedPages) -> EntryTouches:
    """Return what was seen of each entry in all windows together."""
    users, node = np.zeros((2, pages.entries), np.uint8)
    for index, row in enumerate(pages.touches):
        touched = (row > 0).view(np.uint8)
        users += touched
        node += touched * np.uint8(index)
    # Touches from unknown nodes may be from several nodes.
    alone = _either((users == 1) & (node < pages.nodes), node.view(np.int8), np.int8(-1))
    return EntryTouches(alone, BITS[pages.seen], seen_written(pages))


def seen_written(pages: TouchedPages) -> Bools:
    """Return which entries were seen to be written, or may have been in a window that does not tell."""
    written: Bools = np.logical_or(pages.wrote, pages.all_written)
    return written


def written_of(pages: TouchedPages, seen: Bools) -> Bools:
    """Return which entries count as written if so many were ``seen`` to be."""
    written = seen.copy()
    # An entry that is a block has no pages around it.
    if pages.edge:
        pages.singly(written)[_are_written(pages, seen)] = True
    return written


def _either(which: Bools, one: NodeIndexes, other: NodeIndexes | np.int8) -> NodeIndexes:
    """Return ``one`` where ``which``, else the other: as np.where, which takes bytes one by one."""
    return other ^ ((one ^ other) & -which.view(np.int8))


def _are_private(pages: TouchedPages, seen: EntryTouches) -> Bools:
    """Return for each block whether the pages in it have one node each, rather than several."""
    together = pages.by_block(seen.several)
    apart = pages.by_block((seen.windows > 1) & (seen.alone >= 0))
    of_range = bool(together.sum() <= apart.sum())
    return np.where(together + apart >= LEAST_PAGES, together <= apart, of_range)


def _leader(pages: TouchedPages, seen: EntryTouches) -> NodeIndexes:
    """Return for each block the node that most pages in it belong to, -1 where it does not lead clearly."""
    counts = np.stack([pages.by_block(seen.alone == index) for index in range(pages.nodes)])
    order = np.sort(counts, axis=0)
    second = order[-2] if pages.nodes > 1 else np.zeros_like(order[-1])
    leads = (order[-1] >= LEAST_PAGES) & (order[-1] > 2 * second + 1)
    return np.where(leads, counts.argmax(axis=0), -1).astype(np.int8)


def _are_written(pages: TouchedPages, seen: Bools) -> Bools:
    """Return for each block of single pages whether more are written, unseen, than copies are worth.

    For each page that was seen written in w windows there are m / (1 - m) like it that were not, where
    m = (1 - f)^w, and f is how often pages are written once more.
    """
    written, touched, wrote = pages.singly(seen), pages.singly(pages.seen), pages.singly(pages.wrote)
    if not written.any():
        return np.zeros(len(written), np.bool_)
    times = BITS[touched & _telling_windows(touched, wrote, written)[:, None]]
    missed = (1 - _written_again(touched, wrote))[:, None] ** np.arange(1, pages.windows + 1)
    like_it = (_by_times(written, times, pages.windows) * (missed / (1 - missed))).sum(axis=1)
    unwritten: Bools = like_it > WRITES_RATIO * _count((times > 0) & ~written)
    return unwritten


def _by_times(written: Bools, times: Bytes, windows: int) -> Floats:
    """Return how many written pages of each block [B, 512] have each of ``times``, 1 to ``windows``."""
    at, kinds = np.flatnonzero(written), windows + 1
    found = np.bincount(at // HUGE_PAGES * kinds + times.reshape(-1)[at], minlength=len(written) * kinds)
    return found.reshape(-1, kinds)[:, 1:].astype(np.float64)


def _telling_windows(touched: Bytes, wrote: Bytes, written: Bools) -> Bytes:
    """Return for each block, as bits, the windows that tell of writes: all, or those since its first one."""
    since = SINCE[np.bitwise_or.reduce(wrote, axis=1)]
    used = (touched & since[:, None]) > 0
    of_used = _count(used & written)
    changed = (of_used >= LEAST_PAGES) & (2 * of_used > _count(used))
    return np.where(changed, since, np.uint8(255))


def _written_again(touched: Bytes, wrote: Bytes) -> Floats:
    """Return for each block how often, after its first write, a page is written in a window with touches.

    Half a time of one is added to what was seen, so that it is neither 0 nor 1.
    """
    code = AGAIN[touched * np.uint16(256) + wrote]
    again: Floats = (_count(code & 15) + 0.5) / (_count(code >> 4) + 1)
    return again


def _again() -> Bytes:
    """Return of all pairs of windows with touches and windows with writes [65536] what followed on the first.

    As bits, 0 for the newest window.  In how many it was written again, and 16 times in how many it was
    touched or written.
    """
    touched, wrote = np.divmod(np.arange(1 << 16), 256)
    before, times, asked = np.zeros((3, 1 << 16), np.uint8)
    for window in reversed(range(8)):
        used, now = touched >> window & 1, wrote >> window & 1
        times += (before & now).astype(np.uint8)
        asked += (before & (now | used)).astype(np.uint8)
        before |= now.astype(np.uint8)
    return times | asked << np.uint8(4)


AGAIN = _again()


def _count(pages: Bytes | Bools) -> Floats:
    """Return the sum over the pages of each block."""
    counts: Floats = np.add.reduce(pages, axis=-1, dtype=np.int32).astype(np.float64)
    return counts
