"""Typed stub of the C core.  Arrays are any C-contiguous buffers (numpy arrays); sizes are checked.

Every function that waits on the kernel releases the GIL.  Failures raise OSError with the kernel's errno.
"""

from collections.abc import Buffer

def age_heat(heat: Buffer, accessed: Buffer) -> None:
    """In place: heat[i] = heat[i] >> 1 | (accessed[i] ? 128 : 0).  Both uint8, same length."""

def read_pagemap(fd: int, hva: int, entries: Buffer) -> int:
    """Fill ``entries`` (uint64, one per 4 KiB page from ``hva``) from an open /proc/PID/pagemap.

    Returns the number of entries read; fewer than asked means the address space ended.
    """

def idle_mark(bitmap_fd: int, pfns: Buffer) -> int:
    """Set the idle bit of the frames ``pfns`` (uint64; 0 = skip) in an open page_idle/bitmap.

    Needs no order, is fastest when ascending in runs.  Returns how many 64-frame words were written.
    """

def idle_collect(bitmap_fd: int, pfns: Buffer, accessed: Buffer) -> int:
    """accessed[i] = 1 where the idle bit of frame ``pfns[i]`` is clear (touched), else 0; 0 for pfn 0.

    Returns how many were touched.
    """

def expand_huge(accessed: Buffer, huge: Buffer, first: int) -> None:
    """Repeat the answer of each huge page's head for its 512 pages, in place.

    ``huge`` has one uint8 per 2 MiB block, ``first`` is the index within its block of accessed[0].
    """

def move_pages(pid: int, hvas: Buffer, nids: Buffer, status: Buffer) -> int:
    """Move pages ``hvas`` (uint64) of process ``pid`` to ``nids`` (int32); see move_pages(2).

    ``status`` (int32) gets each page's node or -errno; entries the kernel did not reach keep their value.
    Returns the call's duration in ns; a positive return of the system call is not an error.
    """

def page_nids(pid: int, hvas: Buffer, status: Buffer) -> int:
    """Fill ``status`` (int32) with the node of each page, or -errno (-ENOENT: not present)."""
