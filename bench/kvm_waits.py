"""Inside the emulated host: how long do others wait for KVM's and the VMM's locks while something runs?

Three threads take one lock each, over and over: the longest wait of one is how long another held it on.
"""

import ctypes
import fcntl
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
EVENTS = "lock:contention_begin\nlock:contention_end\n"
LINE = re.compile(r"-(\d+) +\[\d+\].*? (\d+\.\d+): contention_(begin|end): (\S+)(?: \(flags=(\S+)\))?")
KVM_PRE_FAULT_MEMORY, KVM_SET_USER_MEMORY_REGION = 0xC040AED5, 0x4020AE46
LOG_DIRTY_PAGES = 1
SMALL_SLOT = 5
PAUSE_S = 0.0005

Waits = dict[str, list[float]]
"""How long each wait was, in ms, by lock."""


class LockTakers:
    """Threads that take mmu_lock as a fault does, mmap_lock as mmap(2) does, slots_lock for a small slot."""

    def __init__(self, vm_fd: int, vcpu_fd: int, cpu: int, *, fault_at: int, small_gpa: int) -> None:
        self._vm, self._vcpu, self._cpu = vm_fd, vcpu_fd, cpu
        self._fault_at, self._small_gpa = fault_at, small_gpa
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._page = self._libc.mmap(None, 4096, 3, 0x22, -1, 0)
        self._set_small_slot(0)
        self._stop = False

    def _fault(self) -> None:
        fcntl.ioctl(self._vcpu, KVM_PRE_FAULT_MEMORY, struct.pack("8Q", self._fault_at, 4096, *[0] * 6))

    def _map(self) -> None:
        self._libc.munmap(self._libc.mmap(None, 4096, 3, 0x22, -1, 0), 4096)

    def _change_slot(self) -> None:
        self._set_small_slot(LOG_DIRTY_PAGES)
        self._set_small_slot(0)

    def _set_small_slot(self, flags: int) -> None:
        region = struct.pack("IIQQQ", SMALL_SLOT, flags, self._small_gpa, 4096, self._page)
        fcntl.ioctl(self._vm, KVM_SET_USER_MEMORY_REGION, region)

    @contextmanager
    def taking(self, waits: Waits) -> Iterator[None]:
        """Take the locks in this block, and append how long each wait was."""
        kinds: dict[int, str] = {}
        jobs = {"mmu_lock": self._fault, "mmap_lock": self._map, "slots_lock": self._change_slot}
        self._stop, ready = False, threading.Barrier(len(jobs) + 1)
        threads = [
            threading.Thread(target=self._repeat, args=(kind, job, kinds, ready))
            for kind, job in jobs.items()
        ]
        for thread in threads:
            thread.start()
        ready.wait()
        start_tracing(list(kinds))
        try:
            yield
        finally:
            self._stop = True
            for thread in threads:
                thread.join()
            for kind, wait_ms in read_waits(stop_tracing(), kinds):
                waits.setdefault(kind, []).append(wait_ms)

    def _repeat(
        self, kind: str, job: Callable[[], None], kinds: dict[int, str], ready: threading.Barrier
    ) -> None:
        os.sched_setaffinity(0, {self._cpu})
        kinds[threading.get_native_id()] = kind
        ready.wait()
        while not self._stop:
            job()
            time.sleep(PAUSE_S)


def start_tracing(threads: list[int]) -> None:
    """Trace who of these threads waits for which lock."""
    (TRACING / "trace").write_text("")
    (TRACING / "buffer_size_kb").write_text("8192")
    (TRACING / "set_event_pid").write_text(" ".join(map(str, threads)))
    (TRACING / "set_event").write_text(EVENTS)
    (TRACING / "tracing_on").write_text("1")


def stop_tracing() -> list[str]:
    """Stop, and return the lines of the trace."""
    (TRACING / "set_event").write_text("")
    return (TRACING / "trace").read_text().splitlines()


def lock_kind(flags: str) -> str:
    """Return which kind of lock the kernel's flags are of: all that KVM has as rwlock is mmu_lock."""
    words = set(flags.split("|"))
    if "MUTEX" in words:
        return "slots_lock"
    if words & {"READ", "WRITE"} and "PERCPU" not in words:
        return "mmu_lock" if "SPIN" in words else "mmap_lock"
    return ""


def read_waits(lines: list[str], kinds: dict[int, str]) -> Iterator[tuple[str, float]]:
    """Yield (lock, ms) for each wait of a thread for the lock that it takes."""
    begun: dict[tuple[int, str], float] = {}
    for match in filter(None, map(LINE.search, lines)):
        thread, at, what, lock, flags = match.groups()
        key = (int(thread), lock)
        if what == "end":
            if (since := begun.pop(key, None)) is not None:
                yield kinds[int(thread)], (float(at) - since) * 1e3
        elif lock_kind(flags or "") == kinds.get(int(thread)):
            # A mutex tells twice: while its taker spins, then when it sleeps.
            begun.setdefault(key, float(at))
