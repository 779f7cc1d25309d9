"""How much CPU time did this program use, with what other threads and processes did in its stead?"""

import threading
import time

_OF_THREAD = threading.local()
_APART_NS = [0]
_LOCK = threading.Lock()


def thread_cpu_ns() -> int:
    """Return the CPU time of the calling thread and of all that was done in its stead."""
    return time.thread_time_ns() + int(getattr(_OF_THREAD, "ns", 0))


def charge_thread(ns: int) -> None:
    """Count CPU time of another thread that worked in the calling one's stead."""
    _OF_THREAD.ns = getattr(_OF_THREAD, "ns", 0) + ns


def charge_apart(ns: int) -> None:
    """Count CPU time of another process that worked in the calling thread's stead."""
    charge_thread(ns)
    with _LOCK:
        _APART_NS[0] += ns


def note_delay(ns: int) -> None:
    """Note how long what worked in the calling thread's stead waited for a CPU."""
    _OF_THREAD.delay_ns = thread_delay_ns() + ns


def thread_delay_ns() -> int:
    """Return how long all that worked in the calling thread's stead waited for a CPU."""
    return int(getattr(_OF_THREAD, "delay_ns", 0))


def apart_cpu_s() -> float:
    """Return the CPU seconds of other processes that worked for this one."""
    return _APART_NS[0] / 1e9
