"""Can a process be read at all, or does it hold up whoever reads it?

Most of /proc/PID that tells of memory (cmdline, smaps, pagemap), and move_pages(2), wait for the lock of
its mappings.  Any user can keep that lock for ever: one thread reads /proc/self/mem at a page of a FUSE file
whose server never answers, another calls mmap(2) and waits behind it, and so does everybody who comes later.

So a thread reads a byte first, and the process is left alone while that thread waits.  Limits: who takes the
lock between that and what follows holds it up all the same, which systemd's watchdog ends.
"""

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue

from vmplace.topology.procfs import PROC

Identity = tuple[int, int]
WAIT_S = 1.0
"""How long one read is waited for; what a large munmap(2) takes is less."""
LEAST_WAIT_S = 0.1
RENEW_S = 10.0
"""Held processes may have one WAIT_S together in so long: thousands of them stall nobody for minutes."""
MOST_HELD = 256
STACK_BYTES = 128 << 10
HELD = "left alone: it holds up whoever reads its memory map"


class HeldReads:
    """Tells by threads of its own who holds readers up; belongs to one thread."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._held: dict[Identity, threading.Event] = {}
        self._reader: _Reader | None = None
        self._left_s, self._renew_at = WAIT_S, clock() + RENEW_S

    def holds(self, identity: Identity) -> bool:
        """Tell whether process ``identity`` (pid, start time) cannot be read now."""
        if (before := self._held.get(identity)) is not None:
            if not before.is_set():
                return True
            del self._held[identity]
        if len(self._held) >= MOST_HELD:
            return True
        if self._reader is None:
            self._reader = _Reader(self._proc)
        done, began = self._reader.read(identity[0]), self._clock()
        if done.wait(max(self._patience_s(began), LEAST_WAIT_S)):
            return False
        self._left_s -= self._clock() - began
        # It waits with that process until it is let go, and ends then.
        self._reader.end()
        self._reader = None
        self._held[identity] = done
        return True

    def keep(self, identities: Iterable[Identity]) -> None:
        """Forget processes that ended."""
        alive = set(identities)
        self._held = {key: done for key, done in self._held.items() if key in alive or not done.is_set()}

    def close(self) -> None:
        """End the thread that reads."""
        if self._reader is not None:
            self._reader.end()
            self._reader = None

    def _patience_s(self, now: float) -> float:
        if now >= self._renew_at:
            self._left_s, self._renew_at = WAIT_S, now + RENEW_S
        return self._left_s


class _Reader:
    """A thread that reads processes in turn, until ``end``."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._asked: SimpleQueue[tuple[int, threading.Event] | None] = SimpleQueue()
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=self._run, name="reader", daemon=True).start()
        finally:
            threading.stack_size(before)

    def read(self, pid: int) -> threading.Event:
        done = threading.Event()
        self._asked.put((pid, done))
        return done

    def end(self) -> None:
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            pid, done = asked
            try:
                with (self._proc / f"{pid}/cmdline").open("rb", buffering=0) as file:
                    file.read(1)
            except Exception:  # noqa: S110 - whatever is wrong is raised for who reads it for its own sake
                pass
            finally:
                done.set()
