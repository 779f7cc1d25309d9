"""Traces small enough to know by heart."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

Record = tuple[int, int, int, int, int]
"""Window, page, thread, loads, stores; all of them reach DRAM."""


def arrays_of(records: Iterable[Record], *, pages: int, threads: int, windows: int) -> dict[str, Any]:
    """Return the arrays of a trace whose pages are all first touched by thread 0, in window 0."""
    window, page, thread, loads, stores = np.array(sorted(records), np.uint32).reshape(-1, 5).T
    return {
        "meta": np.array(json.dumps({"workers": f"0-{threads - 1}"})),
        "vpn": np.arange(pages, dtype=np.uint64),
        "first_touch_thread": np.zeros(pages, np.uint16),
        "first_touch_epoch": np.zeros(pages, np.uint16),
        "first_touch_rank": np.arange(pages, dtype=np.uint32),
        "free_epoch": np.full(pages, 65535, np.uint16),
        "epoch": window.astype(np.uint16),
        "page_idx": page,
        "thread": thread.astype(np.uint8),
        "loads": loads,
        "stores": stores,
        "llc_misses": loads + stores,
        "totals_raw_loads": np.full((windows, threads), 1000, np.uint64),
        "totals_raw_stores": np.zeros((windows, threads), np.uint64),
    }


def private_pages(*, windows: int = 6, npages: int = 400, heat: int = 2000) -> dict[str, Any]:
    """Return a trace whose page p is used by thread p modulo 4 alone, but was first touched by thread 0."""
    records = [(w, p, p % 4, heat, 1) for w in range(windows) for p in range(npages)]
    return arrays_of(records, pages=npages, threads=4, windows=windows)


def handed_over_pages(*, windows: int = 6, npages: int = 400, heat: int = 2000) -> dict[str, Any]:
    """Return a trace whose page p is used by thread p modulo 4, and by the next one in the second half."""
    records = [(w, p, (p + (2 * w >= windows)) % 4, heat, 1) for w in range(windows) for p in range(npages)]
    return arrays_of(records, pages=npages, threads=4, windows=windows)


def lent_pages(*, windows: int = 8, npages: int = 400, heat: int = 2000) -> dict[str, Any]:
    """Return a trace whose page p is used by thread p modulo 4, and a fiftieth as much by the next one.

    Both write; all pages were first touched by thread 0.
    """
    own = [(w, p, p % 4, heat, 1) for w in range(windows) for p in range(npages)]
    lent = [(w, p, (p + 1) % 4, heat // 50, 1) for w in range(windows) for p in range(npages)]
    return arrays_of([*own, *lent], pages=npages, threads=4, windows=windows)


def shared_pages(*, windows: int = 6, npages: int = 400, stores: int = 0, heat: int = 500) -> dict[str, Any]:
    """Return a trace whose pages all four threads use alike; first touched, and in window 0 written, by 0."""
    records = [
        (w, p, t, heat, stores or int(w == 0 and t == 0))
        for w in range(windows)
        for p in range(npages)
        for t in range(4)
    ]
    return arrays_of(records, pages=npages, threads=4, windows=windows)
