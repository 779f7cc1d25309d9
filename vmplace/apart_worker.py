"""Calls that not even a kill ends, made in a process that can be left behind; run as a file by apart.py.

    python3 -I -S apart_worker.py NATIVE    path of the C core; a socket is its stdin

A byte says that it is ready.  Each request is a HEAD and its arrays: MOVE: count addresses (u64), then nodes
(i32), then states; ASK: addresses, then states.  Each answer is an ANSWER, then count states (i32).  WRITE: a
path and a text, with their lengths as pid and count.  COUNT: a KEY, then count EVENTs of the pid's threads,
which are counted from the first such request on; the answer has a COUNTED for each.  DROP: no more of those
whose key is the count.
Ends with its socket.  Its name in ps(1) is that of its work: "vmpmove PID", "vmpmove damon" for WRITE.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Loading typing takes longer than all the rest.
    from typing import Any

HEAD = struct.Struct("=Bqq")
ANSWER = struct.Struct("=iqqq")
"""errno, ns by the clock, ns of CPU, ns that it waited for a CPU."""
EVENT, COUNTED = struct.Struct("=IQi"), struct.Struct("=iQQQ")
"""Type, config and thread; errno, value, ns that it was wanted and ns that it was counted."""
KEY = struct.Struct("=q")
MOVE, ASK, WRITE, COUNT, DROP = 1, 2, 3, 4, 5
_VALUE = struct.Struct("=QQQ")
NAME = "vmpmove "
"""Before the pid of the process that is worked on, in this process' own name; DAMON has no pid."""
DAMON = "damon"
STDIN, STDERR = 0, 2
EIO = 5


def main(native_path: str) -> None:
    """Answer until nobody asks any more."""
    native = _loaded(native_path)
    # A process that is left behind must not keep the agent's stderr open: its reader would wait.
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDERR)
    os.write(STDIN, b"r")
    counters = Counters(native)
    named = None
    while len(head := _read(HEAD.size)) == HEAD.size:
        kind, pid, count = HEAD.unpack(head)
        worked_on = DAMON if kind == WRITE else str(pid)
        if worked_on != named:
            _call_itself(named := worked_on)
        if kind == WRITE:
            _answer(_timed(_written, _read(pid), _read(count)), b"")
            continue
        if kind == COUNT:
            _answer(*counters.counted(pid, _read(KEY.size), _read(EVENT.size * count)))
            continue
        if kind == DROP:
            _answer(_timed(counters.drop, count), b"")
            continue
        hvas = memoryview(_read(8 * count)).cast("Q")
        nids = [memoryview(_read(4 * count)).cast("i")] if kind == MOVE else []
        # The caller's values are sent along: the kernel does not fill in all of them.
        status = memoryview(_read(4 * count)).cast("i")
        call = native.move_pages if kind == MOVE else native.page_nids
        _answer(_timed(call, pid, hvas, *nids, status), status)
    counters.close()


class Counters:
    """Perf events of threads, by key."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._opened: dict[int, tuple[int, list[int]]] = {}

    def counted(self, pid: int, key: bytearray, asked: bytearray) -> tuple[tuple[int, ...], bytes]:
        """Return what each event counts, and before that what this took."""
        found: list[bytes] = []
        return _timed(self._count, pid, *KEY.unpack(key), asked, found), b"".join(found)

    def _count(self, pid: int, key: int, asked: bytearray, found: list[bytes]) -> None:
        if key not in self._opened:
            self._opened[key] = pid, [self._open(*event) for event in EVENT.iter_unpack(asked)]
        found += [COUNTED.pack(*_counted(fd)) for fd in self._opened[key][1]]

    def _open(self, *event: int) -> int:
        try:
            fd: int = self._native.perf_count(*event)
        except OSError as err:
            return -(err.errno or EIO)
        return fd

    def drop(self, key: int) -> None:
        """Count no more."""
        for fd in self._opened.pop(key, (0, ()))[1]:
            if fd >= 0:
                os.close(fd)

    def close(self) -> None:
        """Count nothing more: whoever holds this process up then is whom it is named by."""
        for key, (pid, _) in list(self._opened.items()):
            _call_itself(str(pid))
            self.drop(key)


def _counted(fd: int) -> tuple[int, ...]:
    """Return errno and what an event counts; below 0 is the error with which it did not open."""
    if fd < 0:
        return -fd, 0, 0, 0
    try:
        value = os.read(fd, COUNTED.size)
    except OSError as err:
        return err.errno or EIO, 0, 0, 0
    return (0, *_VALUE.unpack(value)) if len(value) == _VALUE.size else (EIO, 0, 0, 0)


def _loaded(path: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader("_native", path)
    spec = importlib.util.spec_from_loader("_native", loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def _timed(call: Any, *arguments: Any) -> tuple[int, ...]:
    """Return errno, and what the call took; it may return its own ns."""
    before = _waited_for_cpu_ns()
    began, began_cpu, error, ns = time.monotonic_ns(), time.process_time_ns(), 0, None
    try:
        ns = call(*arguments)
    except OSError as err:
        error = err.errno or EIO
    took = time.monotonic_ns() - began if ns is None else ns
    return error, took, time.process_time_ns() - began_cpu, _waited_for_cpu_ns() - before


def _waited_for_cpu_ns() -> int:
    """Return how long this process could have run and had no CPU; 0 where the kernel does not say."""
    try:
        fd = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(fd, 128).split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    finally:
        os.close(fd)


def _written(path: bytes, text: bytes) -> None:
    # A path may not be a bytearray: Python 3.12 and later say so.
    fd = os.open(bytes(path), os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


def _read(size: int) -> bytearray:
    content = bytearray()
    while len(content) < size and (part := os.read(STDIN, size - len(content))):
        content += part
    return content


def _answer(outcome: tuple[int, ...], status: Any) -> None:
    answer = memoryview(ANSWER.pack(*outcome) + bytes(status))
    while answer:
        answer = answer[os.write(STDIN, answer) :]


def _call_itself(worked_on: str) -> None:
    with open("/proc/self/comm", "w") as file:  # noqa: PTH123 - pathlib takes 5 ms and 1 MiB
        file.write(f"{NAME}{worked_on}")


if __name__ == "__main__":
    import signal

    # These signals reach the agent, too, which ends this process after the present batch.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    main(sys.argv[1])
