"""What does the agent itself cost?"""

import os
import re
import resource
from pathlib import Path


def cpu_seconds() -> float:
    """Return the CPU time of this process so far, all threads, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rss_bytes(proc: Path = Path("/proc")) -> int | None:
    """Return the resident memory of this process now, or None where /proc does not tell."""
    try:
        found = re.search(r"^VmRSS:\s+(\d+) kB", (proc / str(os.getpid()) / "status").read_text(), re.M)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
