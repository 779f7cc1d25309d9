"""The threads that do the steps of held.py: each has a file table of its own.

Nothing ends a thread that waits in exit_aio (held.py), not even a kill of the process.  All that such a
thread has open stays open, and threads of a process share one file table.  So a thread that does steps leaves
that table as it begins (close_range(2) with CLOSE_RANGE_UNSHARE).  When the agent is killed, its lock, its
sockets and what it has open of its guests are closed at once.

1. A Worker does Jobs in turn.  Its table has /dev/null as stdin, stdout and stderr, and one end of a socket.
2. Descriptors cross by that socket (SCM_RIGHTS): a job that ``takes`` gets a copy of one, a job that
   ``gives`` returns one.
3. A number means another file in each table.  So a step closes what it opens.  It neither returns nor holds
   an object that closes a descriptor when it is freed (file, socket, mmap).  What it prints or logs is lost.
   tests/unit/test_waits_for_processes.py holds steps to that.
4. Who frees garbage in cycles would close such a number as well.  So no step does (garbage.py).

Limits: before Linux 5.9 the table stays shared.  What is mapped belongs to the process, not to a table: the
memory of a killed agent, and the rings of source "hints", stay until the thread ends.
"""

import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from vmplace.garbage import COLLECTION, Pause
from vmplace.thread_waits import ThreadTimes

T = TypeVar("T")
STACK_BYTES = 256 << 10
CLOSE_RANGE, CLOSE_RANGE_UNSHARE, MOST_FD = 436, 2, (1 << 32) - 1
"""<asm-generic/unistd.h>, <linux/close_range.h>; Python has no such call."""
STDERR = 2
BYTE = b"1"
"""A descriptor is not sent without any."""
_OF_THREAD = threading.local()
"""Freed as the thread ends."""


class End:
    """Whether something is over, and a wait for that; takes less CPU time than threading.Event."""

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> bool:
        """Wait for it; return whether it is over.  For one thread."""
        if self._lock.acquire(timeout=seconds):
            self._lock.release()
        return self.is_set

    def set(self) -> None:
        """It is over; harmless when done twice, by one thread."""
        if not self.is_set:
            self.is_set = True
            self._lock.release()


class Job(Generic[T]):
    """One step, and what became of it."""

    def __init__(self, step: Callable[..., T], *, takes: bool = False, gives: bool = False) -> None:
        """``takes``: the step is called with a descriptor that was sent to it; ``gives``: it returns one."""
        self.ended = End()
        self.cpu_ns, self.slept_s = 0, 0.0
        self._steps: tuple[Callable[..., T], ...] = (step,)
        self._takes, self._gives = takes, gives
        self._lock = threading.Lock()
        self._is_left = False
        self._value: list[Any] = []
        self._error: BaseException | None = None
        self._failure: BaseException | None = None

    def is_over(self) -> bool:
        """Tell whether the thread is done with it."""
        return self.ended.is_set

    def run(self, times: ThreadTimes, channel: socket.socket) -> None:
        """Do the step; called by the thread."""
        before = time.thread_time_ns()
        times.begin()
        own = [_received(channel)] if self._takes else []
        try:
            for step in self._steps:
                self._value.append(step(*own))
        except BaseException as err:  # whoever waits for it gets it
            self._error = err
        for fd in own:
            os.close(fd)
        self._steps, self.cpu_ns = (), time.thread_time_ns() - before
        self.slept_s = times.slept_s(self.cpu_ns)
        opened = self.given()
        with self._lock:
            if opened and not self._is_left and self._is_sent(channel, opened):
                # Not the last one: it is on its way.
                os.close(opened.pop())
            self.ended.set()
        for fd in opened:
            # Nobody gets it: the last one, whose closing may take long.
            os.close(fd)

    def fail(self, error: BaseException) -> None:
        """End with an error, and give nothing: who waits would else blame the guest for good.

        The thread is to do no other job: a descriptor of this one may still be on its way, either way.
        """
        self._failure, self._value = error, []
        self.ended.set()

    def check(self) -> None:
        """Raise what failed of the thread itself, if anything did."""
        if self._failure is not None:
            raise self._failure

    def leave(self) -> bool:
        """Wait for it no more; return whether it has ended after all, else it gives nothing any more."""
        with self._lock:
            self._is_left = True
            return self.ended.is_set

    def outcome(self) -> T:
        """Return what the step returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        value: T = self._value.pop()
        return value

    def given(self) -> list[int]:
        """Return the descriptor that it gives, if there is one."""
        return list(self._value) if self._gives else []

    def received(self, fd: int) -> None:
        """Return this descriptor: the one that it gave, in the caller's table."""
        self._value = [fd]

    def _is_sent(self, channel: socket.socket, fds: list[int]) -> bool:
        try:
            socket.send_fds(channel, [BYTE], fds)
        except OSError as err:
            self._error, self._value = err, []
            return False
        return True


class Worker(threading.Thread):
    """A thread that does jobs in turn, until it is ended."""

    def __init__(self) -> None:
        """Start it; raises OSError, RuntimeError where there is no room for one more."""
        super().__init__(name="step", daemon=True)
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        # A number, not an object: it is closed in two tables.
        self._theirs = theirs.detach()
        self._began, self._is_apart = threading.Event(), False
        COLLECTION.pause()
        before = threading.stack_size(STACK_BYTES)
        try:
            self.start()
        except BaseException:
            COLLECTION.resume()
            self._ours.close()
            os.close(self._theirs)
            raise
        finally:
            threading.stack_size(before)
        self._began.wait()
        self.stat = Path(f"/proc/self/task/{self.native_id}/stat")
        if self._is_apart:
            os.close(self._theirs)

    def begin(self, job: Job[Any]) -> None:
        """Do a job once those before it are done."""
        COLLECTION.pause()
        self._jobs.put(job)

    def end(self) -> None:
        """End once its jobs are done; nothing is sent or received any more."""
        COLLECTION.pause()
        self._jobs.put(None)
        self.forget()

    def forget(self) -> None:
        """Close what its process has of it."""
        self._ours.close()

    def send(self, fd: int) -> None:
        """Send a copy of a descriptor to the next job, which ``takes`` it; raises OSError."""
        socket.send_fds(self._ours, [BYTE], [fd])

    def receive(self, job: Job[Any]) -> None:
        """Take up the descriptor that a job gave, if it did; raises OSError."""
        if job.given():
            job.received(_received(self._ours))

    def run(self) -> None:
        """Do jobs."""
        # Their handlers write to descriptors of the table that it leaves.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._is_apart = _unshare_table(self._theirs)
        finally:
            # Only now, as what follows may wait: a client's file may never close (interfaces/closing.py).
            self._began.set()
        if self._is_apart:
            _close_all_but(self._theirs)
        times = ThreadTimes()
        with socket.socket(fileno=self._theirs) as channel:
            while (job := self._next()) is not None:
                try:
                    job.run(times, channel)
                except BaseException as err:  # not of the step: of what measures it, and hands over
                    job.fail(err)
                # An idle thread must not keep what a step returned.
                del job
        times.close()
        # Not yet resumed: threading goes on in this thread for a while, and makes objects.
        _OF_THREAD.pause = Pause()

    def _next(self) -> Job[Any] | None:
        # Paused by who starts it, gives it a job or ends it.
        COLLECTION.resume()
        return self._jobs.get()


def _unshare_table(last: int) -> bool:
    """Copy the calling thread's file table up to this descriptor; False where it stays shared."""
    arguments = map(ctypes.c_ulong, (last + 1, MOST_FD, CLOSE_RANGE_UNSHARE))
    return not int(ctypes.CDLL(None).syscall(ctypes.c_long(CLOSE_RANGE), *arguments))


def _close_all_but(keep: int) -> None:
    os.closerange(0, keep)
    # Python itself may write to stderr: never to what a step opens.
    while (null := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= STDERR:
        pass
    os.close(null)


def _received(sock: socket.socket) -> int:
    _, fds, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not fds:
        raise OSError("a descriptor was not received: too many are open")
    return fds[0]
