"""Make calls that not even a kill interrupts in a process of their own.

move_pages(2) waits for the lock of a process' mappings, and not even a kill ends that wait (6.18:
do_pages_move and do_pages_stat take mmap_read_lock; readers of /proc take mmap_read_lock_killable).  A
process can hold that lock for ever (held.py).  A thread of the agent that waited there would keep the agent
from ending, and systemd from starting the next one.  So a process of its own, native/apart_worker.c, makes
these calls.  If a guest blocks it, it is left behind, and another one takes its place.  Writes to DAMON are
made there, too, as DAMON's thread in the kernel takes that lock.

Nobody knows what becomes of such a call: its pages may move once the guest unlocks its mappings.  Their
record in the journal was written before and stays.  Nothing is begun for that guest until the process has
ended, even if it is of an agent that was killed (left_behind.py).
"""

import contextlib
import logging
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vmplace import held, native
from vmplace.cpu_time import charge_apart, note_delay
from vmplace.errors import VmplaceError
from vmplace.held import HeldError

LOG = logging.getLogger(__name__)
Hvas = npt.NDArray[np.uint64]
Status = npt.NDArray[np.int32]
START_S, END_S = 30.0, 1.0
DAMON_KEY = -1
"""Stands for a pid: nobody knows which process blocks a write to DAMON."""
HEAD = struct.Struct("=IiII")
"""Kind, pid, count, bytes of text (native/apart_requests.h, as all that is sent and answered)."""
ANSWER = struct.Struct("=qqqq")
"""errno, ns by the clock, ns of CPU since the last answer, ns that it waited for a CPU."""
LACK_CURE = "free some memory, or raise TasksMax and LimitNOFILE of the agent"
UNUSABLE_CURE = f"install vmplace again: {native.APART} is missing, or may not be executed"
ENDED_CURE = "`journalctl -k` tells whether the kernel ended it, as for lack of memory"
READY = b"2"
"""What is sent first, by a program with these formats."""
MOVE, ASK, WRITE, COUNT = 1, 2, 3, 4
MOST_PAGES = 4096
"""Of one request: what a process that is left behind keeps of it is memory of the agent."""


class Process:
    """One process that makes calls in turn."""

    def __init__(self) -> None:
        try:
            self._socket, self._process = _started()
        except OSError as err:
            # Not as OSError, which callers take for the result of the call, such as "the node is full".
            is_unusable = isinstance(err, FileNotFoundError | PermissionError)
            raise VmplaceError(
                f"the process that moves pages does not start: {err.strerror}",
                hint=UNUSABLE_CURE if is_unusable else LACK_CURE,
            ) from err
        self._stat = Path(f"/proc/{self._process.pid}/stat")
        # Whose the guest is for which the last call was made; it may be gone as the process ends.
        self._uid: int | None = None
        self._answers = select.poll()
        self._answers.register(self._socket, select.POLLIN)
        # While it starts, it may wait for files and memory; no guest is to blame for that.
        if not self._answers_within(START_S) or self._socket.recv(1) != READY:
            self.end()
            raise VmplaceError(
                "the process that moves pages does not start",
                hint="restart the agent if vmplace was upgraded since, or see the log",
            )

    def call(self, pid: int, request: bytes, answer_bytes: int, patience_s: float | None = None) -> bytes:
        """Return the answer; raises HeldError, and VmplaceError if the process ended by itself."""
        # Before the call: the guest may be gone by the time that it is given up.
        uid = self._uid = held.whose(pid)
        try:
            self._socket.sendall(request)
            held.await_end(pid, self._answers_within, self._stat, self._has_ended, patience_s, uid=uid)
            answer = self._socket.recv(answer_bytes)
            while len(answer) < answer_bytes and (part := self._socket.recv(answer_bytes - len(answer))):
                answer += part
        except OSError as err:
            raise VmplaceError(
                f"the process that moves pages ended: {err.strerror}", hint=ENDED_CURE
            ) from err
        if len(answer) < answer_bytes:
            raise VmplaceError("the process that moves pages ended", hint=ENDED_CURE)
        return answer

    def end(self) -> None:
        """Have it end; nobody waits for that."""
        self._socket.close()
        self._process.kill()
        # If it is not dead yet, a later call of _has_ended reaps it, or init does.
        self._process.poll()

    def finish(self, pid: int) -> None:
        """Have it close what it counts, and end; raises HeldError if process ``pid`` holds that up."""
        try:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            # It closes its socket last.
            held.await_end(pid, self._answers_within, self._stat, self._has_ended, uid=self._uid)
        finally:
            self.end()

    def let_go(self) -> None:
        """Have it end by itself, once it is idle."""
        self._socket.close()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, for so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def _answers_within(self, seconds: float) -> bool:
        return bool(self._answers.poll(seconds * 1000))


def _started() -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """Start the process; return our end of its socket, and it; raises OSError."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            return ours, subprocess.Popen(
                [native.APART], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd="/", env={}
            )
        except BaseException:
            ours.close()
            raise


_IDLE: list[Process] = []
_LOCK = threading.Lock()


# A forked child must not use its parent's processes.
os.register_at_fork(after_in_child=_IDLE.clear)


@contextlib.contextmanager
def _taken() -> Iterator[Process]:
    with _LOCK:
        process = _IDLE.pop() if _IDLE else None
    process = process or Process()
    try:
        yield process
    except BaseException:
        process.end()
        raise
    with _LOCK:
        _IDLE.append(process)


def move_pages(pid: int, hvas: Hvas, nids: Status, status: Status) -> int:
    """See ``native.move_pages``; at most MOST_PAGES.

    Raises HeldError, too: what became of the pages is not known then.
    """
    return _call(MOVE, pid, hvas, status, nids.tobytes())


def page_nids(pid: int, hvas: Hvas, status: Status) -> None:
    """See ``native.page_nids``; raises HeldError, too."""
    for first in range(0, max(len(hvas), 1), MOST_PAGES):
        some = slice(first, first + MOST_PAGES)
        _call(ASK, pid, hvas[some], status[some], b"")


def write(path: Path, text: str, *, patience_s: float) -> None:
    """Write to a file of DAMON; raises OSError, and HeldError until an earlier write has ended."""
    if held.holds(DAMON_KEY):
        raise HeldError
    name, content = os.fsencode(path) + b"\0", text.encode()
    request = HEAD.pack(WRITE, 0, len(name), len(content)) + name + content
    with _taken() as process:
        answer = process.call(DAMON_KEY, request, ANSWER.size, patience_s)
    raise_error(*ANSWER.unpack(answer))


def close() -> None:
    """End the processes that wait for nobody."""
    with _LOCK:
        idle, _IDLE[:] = list(_IDLE), []
    end_all(idle)


def end_all(processes: Collection[Process]) -> None:
    """Have idle processes end, and wait for that, END_S for all of them together."""
    for process in processes:
        process.let_go()
    end = time.monotonic() + END_S
    for process in processes:
        process.wait(max(end - time.monotonic(), 0.0))


def _call(kind: int, pid: int, hvas: Hvas, status: Status, nids: bytes) -> int:
    if held.holds(pid):
        raise HeldError
    request = b"".join((HEAD.pack(kind, pid, len(hvas), 0), hvas.tobytes(), nids, status.tobytes()))
    with _taken() as process:
        answer = process.call(pid, request, ANSWER.size + 4 * len(hvas))
    status[:] = np.frombuffer(answer, np.int32, offset=ANSWER.size)
    return raise_error(*ANSWER.unpack_from(answer))


def raise_error(error: int, ns: int, cpu_ns: int, delay_ns: int) -> int:
    """Return how long a call took, by its ANSWER; raises OSError."""
    charge_apart(cpu_ns)
    note_delay(delay_ns)
    if error:
        raise OSError(error, os.strerror(error))
    return ns
