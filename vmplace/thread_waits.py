"""Does a thread work, or does it wait?  By /proc/TID/stat and /proc/TID/schedstat.

The "stat" of other programs' threads is never read: that would wait for as long as they wait in execve(2).
"""

import contextlib
import os
import time
from pathlib import Path

WAITING_SHARE = 4
"""A thread that works for less than such a part of the time waits.  Others may wait for the interpreter's
lock or for a CPU that the hypervisor took."""
LEAST_SLEEP_NS = 1_000_000
"""A step may always sleep so long: there is the interpreter's lock, and honest guests use their own."""
STAT_BYTES = 1024
Look = tuple[int, int]
"""What a thread has done so far: ticks of CPU time, and ns that it ran or waited for a CPU (0: not known)."""


class ThreadTimes:
    """How long the calling thread sleeps in a step: it neither runs nor waits for a CPU."""

    def __init__(self) -> None:
        self._fd, self._began_ns, self._before = -1, 0, b""
        with contextlib.suppress(OSError):
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def begin(self) -> None:
        """A step begins."""
        self._began_ns, self._before = time.monotonic_ns(), self._read()

    def slept_s(self, cpu_ns: int) -> float:
        """Return how much longer than WAITING_SHARE allows the step slept that ends now."""
        took_ns = time.monotonic_ns() - self._began_ns
        if took_ns <= WAITING_SHARE * cpu_ns + LEAST_SLEEP_NS or not self._before:
            return 0.0
        busy_ns = _ran_ns(self._read()) - _ran_ns(self._before)
        return max(took_ns - WAITING_SHARE * busy_ns - LEAST_SLEEP_NS, 0) / 1e9

    def close(self) -> None:
        """The thread ends."""
        if self._fd >= 0:
            os.close(self._fd)

    def _read(self) -> bytes:
        return os.pread(self._fd, STAT_BYTES, 0) if self._fd >= 0 else b""


def waited_s_between(before: Look | None, now: Look | None, seconds: float) -> float:
    """Return how much of the ``seconds`` between two looks a thread waited."""
    if before is None or now is None:
        return 0.0
    if not before[1] or not now[1]:
        return seconds if before == now else 0.0
    busy_s = (now[1] - before[1]) / 1e9
    return seconds - busy_s if busy_s < seconds / WAITING_SHARE else 0.0


def waiting_since(stat: Path) -> Look | None:
    """Return what a thread that waits has done; None of one that works, or waits for a CPU, or is gone."""
    try:
        ticks = _waiting_ticks(_read_small(stat))
    except OSError:
        return None
    if ticks is None:
        return None
    try:
        # A tick is 10 ms: who works for 4 ms in each 40 would never be seen to wait.
        return ticks, _ran_ns(_read_small(stat.with_name("schedstat")))
    except OSError:
        return ticks, 0


def _waiting_ticks(stat: bytes) -> int | None:
    """Return the CPU time in /proc/PID/stat; None of a thread that works, or that has no such line."""
    fields = stat.rpartition(b")")[2].split(None, 13)
    if len(fields) < 13 or fields[0] == b"R":
        return None
    return sum(int(ticks) for ticks in fields[11:13]) if all(map(bytes.isdigit, fields[11:13])) else None


def ran_and_waited_ns(schedstat: Path) -> tuple[int, int] | None:
    """Return how long a thread ran, and waited for a CPU; None if it is gone, or nobody counts."""
    try:
        times = _read_small(schedstat).split()[:2]
    except OSError:
        return None
    is_counted = len(times) == 2 and all(map(bytes.isdigit, times)) and times != [b"0", b"0"]
    return (int(times[0]), int(times[1])) if is_counted else None


def _ran_ns(schedstat: bytes) -> int:
    """Return how long a thread ran or waited for a CPU; 0 where the kernel does not say."""
    times = schedstat.split()[:2]
    return sum(map(int, times)) if len(times) == 2 and all(map(bytes.isdigit, times)) else 0


def _read_small(path: Path) -> bytes:
    # Looked at often, on slow hosts too: a file object takes ten times as long.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, STAT_BYTES)
    finally:
        os.close(fd)
