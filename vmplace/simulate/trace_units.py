"""A trace whose pages are huge: all pages of one aligned block are one, placed and moved as a whole.

1. A huge page begins with the first touch of one of its small pages, by whoever touches that one.  It ends
   when the last of them is unmapped; what is touched in the block later is another one.
2. Its accesses are those of its small pages: whoever reads one reads it, whoever writes one writes it.
3. It takes the memory of all its small pages, also of those that the program never touches.

64 KiB stands for 2 MiB in a program that was made small for an emulator (docs/simulate.md).
"""

from dataclasses import replace

import numpy as np

from vmplace.simulate.trace import NEAR_PAGES, NEVER, Ints, Trace

UNITS = {"4K": 1, "64K": NEAR_PAGES[0], "2M": NEAR_PAGES[1]}
"""Sizes of pages that a guest may have, in pages of 4 KiB."""


def in_units(trace: Trace, pages: int) -> Trace:
    """Return the trace with one page for each aligned block of so many, one of ``UNITS``."""
    if pages == 1:
        return trace
    block = trace.near[NEAR_PAGES.index(pages)].astype(np.int64)
    order = np.lexsort((trace.first_touch_rank, trace.first_touch_window, block))
    begins = _begins(trace, block, order)
    starts, unit = np.flatnonzero(begins), np.empty(trace.npages, np.int64)
    unit[order] = np.cumsum(begins) - 1
    first = order[starts]
    return replace(
        _records(trace, unit, len(first)),
        first_touch_thread=trace.first_touch_thread[first],
        first_touch_window=trace.first_touch_window[first],
        first_touch_rank=trace.first_touch_rank[first],
        free_window=np.maximum.reduceat(_free_window(trace)[order], starts),
        near=(np.arange(len(first)),),
        frame=block[first],
        unit_pages=pages,
    )


def _begins(trace: Trace, block: Ints, order: Ints) -> Ints:
    """Return, of the pages in this order, which begin a huge page: no earlier one of the block is left."""
    base = block[order] * (NEVER + 1)
    gone = np.maximum.accumulate(base + _free_window(trace)[order])
    begins = np.ones(len(order), np.int64)
    begins[1:] = (base + trace.first_touch_window[order])[1:] > gone[:-1]
    return begins


def _free_window(trace: Trace) -> Ints:
    """Return when each page is unmapped: whatever is later than the last window is never."""
    return np.minimum(trace.free_window, NEVER).astype(np.int64)


def _records(trace: Trace, unit: Ints, units: int) -> Trace:
    """Return the trace with the records of each window, huge page and thread summed."""
    window = np.repeat(np.arange(trace.windows), np.diff(trace.window_starts))
    each = units * trace.threads
    # Signed: of a sum with uint64 numpy makes floats, which are no indexes.
    code = window * each + unit[trace.page] * trace.threads + trace.thread.astype(np.int64)
    found, where = np.unique(code, return_inverse=True)
    loads, stores, dram = (
        np.bincount(where, weights=one).astype(np.int64) for one in (trace.loads, trace.stores, trace.dram)
    )
    return replace(
        trace,
        page=found % each // trace.threads,
        thread=found % trace.threads,
        loads=loads,
        stores=stores,
        dram=dram,
        window_starts=np.searchsorted(found // each, np.arange(trace.windows + 1)),
        sampled=np.bincount(where, weights=trace.sampled).astype(np.float64),
    )
