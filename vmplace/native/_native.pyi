"""Typed stub of the C core.  Arrays must be C-contiguous and of exactly the stated item type.

Every function that waits on the kernel releases the GIL.  Failures raise OSError with the kernel's errno;
a buffer of another item type is a TypeError, buffers of different lengths are a ValueError.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

U8: TypeAlias = npt.NDArray[np.uint8]
U64: TypeAlias = npt.NDArray[np.uint64]
I32: TypeAlias = npt.NDArray[np.int32]

def age_heat(heat: U8, accessed: U8) -> None:
    """In place: heat[i] = heat[i] >> 1 | (accessed[i] ? 128 : 0).  Both uint8, same length."""

def read_pagemap(fd: int, hva: int, entries: U64) -> int:
    """Fill ``entries`` (uint64, one per 4 KiB page from ``hva``) from an open /proc/PID/pagemap.

    Returns the number of entries read; fewer than asked means the address space ended (0: the process did).
    """

def folio_heads(kpageflags_fd: int, pfns: U64, heads: U64) -> None:
    """heads[i] = pfn of the head of the folio of frame ``pfns[i]`` (both uint64), by /proc/kpageflags.

    0 where the idle bitmap never answers (pfn 0, hugetlb).  A frame that is no guest's own (zero page,
    unplugged) is set to 0 in ``pfns``, too.  Fastest when ascending in runs.
    """

def idle_mark(bitmap_fd: int, pfns: U64) -> int:
    """Set the idle bit of the frames ``pfns`` (uint64; 0 = skip) in an open page_idle/bitmap.

    Needs no order, is fastest when ascending in runs.  Returns how many 64-frame words were written.
    """

def idle_collect(bitmap_fd: int, pfns: U64, accessed: U8) -> int:
    """accessed[i] = 1 where the idle bit of frame ``pfns[i]`` is clear (touched), else 0; 0 for pfn 0.

    Tails of a folio always read as touched: ask for heads.  Returns how many were touched.
    """

def drain_lru() -> None:
    """Make the kernel put lately faulted pages of all CPUs on the LRU, where the idle bitmap sees them."""

def move_pages(pid: int, hvas: U64, nids: I32, status: I32, all_owners: bool = False) -> int:
    """Move pages ``hvas`` (uint64) of process ``pid`` to ``nids`` (int32); see move_pages(2).

    ``status`` (int32) gets each page's node or -errno; entries the kernel did not reach keep their value.
    Pages that other processes map, too, move only with ``all_owners`` (MPOL_MF_MOVE_ALL, CAP_SYS_NICE).
    Returns the call's duration in ns; a positive return of the system call is not an error.
    """

def page_nids(pid: int, hvas: U64, status: I32) -> None:
    """Fill ``status`` (int32) with the node of each page, or -errno (-ENOENT: not present)."""
