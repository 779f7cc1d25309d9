"""Calls that not even a kill ends, made in a process that can be left behind; run as a file by apart.py.

    python3 -I -S apart_worker.py NATIVE    path of the C core; a socket is its stdin

A byte says that it is ready.  Each request is a HEAD and its arrays: MOVE: count addresses (u64), then nodes
(i32), then states; ASK: addresses, then states.  Each answer is an ANSWER, then count states (i32).  WRITE: a
path and a text, with their lengths as pid and count.
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
    # To load it takes longer than all the rest.
    from typing import Any

HEAD = struct.Struct("=Bqq")
ANSWER = struct.Struct("=iqq")
"""errno, ns by the clock, ns of CPU."""
MOVE, ASK, WRITE = 1, 2, 3
NAME = "vmpmove "
"""Before the pid of the process that is worked on, in this process' own name; DAMON has no pid."""
DAMON = "damon"
STDIN, STDERR = 0, 2
EIO = 5


def main(native_path: str) -> None:
    """Answer until nobody asks any more."""
    native = _loaded(native_path)
    # Who reads what the agent says must not wait for one that is left behind.
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDERR)
    os.write(STDIN, b"r")
    named = None
    while len(head := _read(HEAD.size)) == HEAD.size:
        kind, pid, count = HEAD.unpack(head)
        worked_on = DAMON if kind == WRITE else str(pid)
        if worked_on != named:
            _call_itself(named := worked_on)
        if kind == WRITE:
            _answer(_timed(_written, _read(pid), _read(count)), b"")
            continue
        hvas = memoryview(_read(8 * count)).cast("Q")
        nids = [memoryview(_read(4 * count)).cast("i")] if kind == MOVE else []
        # What the kernel does not fill in stays what it was.
        status = memoryview(_read(4 * count)).cast("i")
        call = native.move_pages if kind == MOVE else native.page_nids
        _answer(_timed(call, pid, hvas, *nids, status), status)


def _loaded(path: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader("_native", path)
    spec = importlib.util.spec_from_loader("_native", loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def _timed(call: Any, *arguments: Any) -> tuple[int, int, int]:
    """Return errno, and what the call took; it may return its own ns."""
    began, began_cpu, error, ns = time.monotonic_ns(), time.process_time_ns(), 0, None
    try:
        ns = call(*arguments)
    except OSError as err:
        error = err.errno or EIO
    return error, time.monotonic_ns() - began if ns is None else ns, time.process_time_ns() - began_cpu


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


def _answer(outcome: tuple[int, int, int], status: Any) -> None:
    answer = memoryview(ANSWER.pack(*outcome) + bytes(status))
    while answer:
        answer = answer[os.write(STDIN, answer) :]


def _call_itself(worked_on: str) -> None:
    with open("/proc/self/comm", "w") as file:  # noqa: PTH123 - pathlib takes 5 ms and 1 MiB
        file.write(f"{NAME}{worked_on}")


if __name__ == "__main__":
    import signal

    # Whoever started it ends it, after the batch that is under way.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    main(sys.argv[1])
