"""Make calls that not even a kill interrupts in a process of their own.

move_pages(2) waits for the lock of a process' mappings, and not even a kill ends that wait (6.18:
do_pages_move and do_pages_stat take mmap_read_lock; readers of /proc take mmap_read_lock_killable).  A
process can hold that lock for ever (held.py).  A thread of the agent that waited there would keep the agent
from ending, and systemd from starting the next one.  So a process of its own, native/apart_worker.c, makes
these calls.  If a guest blocks it, it is left behind, and another one takes its place.  Writes to DAMON are
made there, too, as DAMON's thread in the kernel takes that lock.

Nobody knows what becomes of such a call: its pages may move once the guest unlocks its mappings.  Their
record in the journal was written before and stays.  Nothing is begun for that guest until the process has
ended, even if it is of an agent that was killed (``note_left_behind``).
"""

import contextlib
import logging
import os
import re
import select
import socket
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vmplace import held, native
from vmplace.cpu_time import charge_apart, note_delay
from vmplace.errors import VmplaceError
from vmplace.held import HeldError
from vmplace.outside import SMALL_BYTES, read_text
from vmplace.users import is_nobody_but

LOG = logging.getLogger(__name__)
Hvas = npt.NDArray[np.uint64]
Status = npt.NDArray[np.int32]
START_S, END_S = 30.0, 1.0
GONE_S = 2.0
"""A process that waits for no guest ends this soon after its agent, even on a busy machine."""
DAMON_KEY = -1
"""Stands for a pid: nobody knows which process blocks a write to DAMON."""
PARENT, START_TIME = 1, 19
HEAD = struct.Struct("=IiII")
"""Kind, pid, count, bytes of text (native/apart_requests.h, as all that is sent and answered)."""
ANSWER = struct.Struct("=qqqq")
"""errno, ns by the clock, ns of CPU since the last answer, ns that it waited for a CPU."""
READY = b"2"
"""What is sent first, by a program with these formats."""
MOVE, ASK, WRITE, COUNT = 1, 2, 3, 4
MOST_PAGES = 4096
"""Of one request: what a process that is left behind keeps of it is memory of the agent."""
UNIFIED, ONE_PID = re.compile(r"^0::.*$", re.MULTILINE), re.compile(r"^NSpid:\s*\d+$", re.MULTILINE)
"""In /proc/PID/cgroup, and in its status."""
NAME = "vmpmove "
"""Before the pid of the process that is worked on, in a process' own name; DAMON has no pid."""
DAMON = "damon"


class Process:
    """One process that makes calls in turn."""

    def __init__(self) -> None:
        try:
            self._socket, self._process = _started()
        except OSError as err:
            # Not as OSError, which callers take for the result of the call, such as "the node is full".
            raise VmplaceError(
                f"the process that moves pages does not start: {err.strerror}",
                hint="free some memory, or raise TasksMax and LimitNOFILE of the agent",
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
            raise VmplaceError(f"the process that moves pages ended: {err.strerror}") from err
        if len(answer) < answer_bytes:
            raise VmplaceError("the process that moves pages ended")
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


def note_left_behind(proc: Path = Path("/proc"), *, patience_s: float = GONE_S) -> None:
    """Begin nothing for guests for which a killed agent's process still waits.

    Processes that wait for no guest end a moment after their agent; first of all, wait for these.
    """
    left = list(_iter_left_behind(proc))
    end = time.monotonic() + patience_s
    while time.monotonic() < end and not all(has_ended() for _, has_ended in left):
        time.sleep(0.01)
    for pid, has_ended in left:
        if not has_ended():
            held.note_stuck(pid, has_ended)


def _iter_left_behind(proc: Path) -> Iterator[tuple[int, Callable[[], bool]]]:
    """Yield for which guest each such process works, and how to ask whether it has ended."""
    for path in proc.glob("[0-9]*"):
        # Processes end meanwhile, and choose their names.
        with contextlib.suppress(OSError, ValueError, IndexError, HeldError):
            name = _name(path)
            if name.startswith(NAME) and (began := held.bounded(int(path.name), partial(_began, path))):
                worked_on = name.removeprefix(NAME)
                pid = DAMON_KEY if worked_on == DAMON else int(worked_on)
                yield pid, _ended(path, began)


def _began(path: Path) -> int | None:
    """Return when a process began that belongs to another agent; None for any other process.

    Such a process belongs to this user by all its ids, and runs the agent's program.  Its name proves
    nothing: anybody may start su(1) or sudo(8) under any name and let it wait for a password, and both then
    act as root.
    """
    if not is_nobody_but(os.geteuid(), path) or not _runs_program(path):
        return None
    return None if _stat(path, PARENT) == os.getpid() else _stat(path, START_TIME)


def _runs_program(path: Path) -> bool:
    """Tell whether a process, this user's by all its ids, runs this agent's program or an earlier one's.

    The agent may have been upgraded since: the earlier one's file is deleted, or in another folder.  Then it
    is known by its name and by its control group, which a unit keeps.  No user gets into that group, nor does
    root of a container.  A user's own file does not pass for it, nor does a link to a program like sudo(8).
    One that was killed and waits in its exit has no program any more (``_may_have_run_program``).
    A process that is not recognised keeps nobody from work for its guest, who finds then that it blocks.
    """
    own = native.APART.stat()
    try:
        runs = (path / "exe").stat()
    except FileNotFoundError:
        return _may_have_run_program(path)
    if os.path.samestat(runs, own):
        return True
    name = os.fspath((path / "exe").readlink()).removesuffix(" (deleted)")
    others = stat.S_ISUID | stat.S_ISGID | stat.S_IWGRP | stat.S_IWOTH
    return (
        Path(name).name == native.APART.name
        and runs.st_uid == own.st_uid
        and not runs.st_mode & others
        and read_text(path / "cgroup", SMALL_BYTES) == read_text(Path("/proc/self/cgroup"), SMALL_BYTES)
    )


def _may_have_run_program(path: Path) -> bool:
    """Tell whether a process that exits is of the agent's control group, and of no container.

    The kernel tells only its group of the unified hierarchy (6.18, kernel/cgroup: proc_cgroup_show).  Where
    that has no groups, its pids have to do: a process of a container has one more there.
    """
    own, its = (UNIFIED.search(read_text(one / "cgroup", SMALL_BYTES)) for one in (Path("/proc/self"), path))
    is_of_group = own is not None and its is not None and own[0] == its[0]
    return is_of_group and ONE_PID.search(read_text(path / "status", SMALL_BYTES)) is not None


def _name(path: Path) -> str:
    return read_text(path / "comm", SMALL_BYTES).rstrip("\n")


def _stat(path: Path, number: int) -> int:
    """Return a number of those that follow the name in /proc/PID/stat; 0 is the process' state."""
    return int(read_text(path / "stat", SMALL_BYTES).rpartition(")")[2].split()[number])


def _ended(path: Path, start_time: int) -> Callable[[], bool]:
    def has_ended() -> bool:
        try:
            # Another process may have the pid now: nothing of it is read that may block.
            if not _name(path).startswith(NAME) or not is_nobody_but(os.geteuid(), path):
                return True
            # Not by inode: a process' directory gets another one whenever the kernel frees its cache.
            text = read_text(path / "stat", SMALL_BYTES)
            state = text.rpartition(")")[2].split()[0]
            return state in "ZX" or _stat(path, START_TIME) != start_time
        except (FileNotFoundError, ProcessLookupError):
            return True
        except Exception:
            # The caller works for another guest and must not fail; a process that cannot be read may run.
            LOG.debug("%s cannot be read", path, exc_info=True)
            return False

    return has_ended
