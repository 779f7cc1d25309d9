"""What does the agent itself cost?"""

import ctypes
import os
import re
import resource
from pathlib import Path

from vmplace.cpu_time import apart_cpu_s
from vmplace.outside import SMALL_BYTES, read_text


def cpu_seconds() -> float:
    """Return the CPU time of this process so far, all threads, and of what moves pages for it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime + apart_cpu_s()


def rss_bytes(proc: Path = Path("/proc")) -> int | None:
    """Return the resident memory of this process now, or None where /proc does not tell."""
    try:
        text = read_text(proc / str(os.getpid()) / "status", SMALL_BYTES)
    except OSError:
        return None
    found = re.search(r"^VmRSS:\s+(\d+) kB", text, re.M)
    return int(found[1]) * 1024 if found else None


LEAST_BYTES, BYTES_A_PAGE = 256 << 20, 16
"""More than memory_budget.py plans for: the limit that holds if that estimate is wrong."""


def limit_memory() -> int:
    """Limit the memory of this process by the host's memory; return the limit in bytes.

    Beyond it an allocation fails with a MemoryError, which costs one guest its window.  The kernel's OOM
    killer would end the agent for all guests.  RLIMIT_DATA counts private writable memory, touched or not.
    """
    limit = LEAST_BYTES + BYTES_A_PAGE * os.sysconf("SC_PHYS_PAGES")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""<malloc.h>"""


def limit_heap(threshold_bytes: int = 1 << 18) -> bool:
    """Have the C library return large blocks to the kernel when they are freed; False where it cannot.

    glibc raises its threshold with each large block that is freed (mallopt(3)), and page arrays then stay
    on the heap for good: 12 MB of RSS with 16 GiB of guests.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, threshold_bytes) and mallopt(M_TRIM_THRESHOLD, threshold_bytes))
