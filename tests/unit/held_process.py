"""Files that stand for those of a process which holds up its readers, and looks at descriptors."""

import contextlib
import errno
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vmplace.held import (
    Held,
)

MOST_OF_USER = 8
"""Of a user, where no other user's processes hold readers up."""


def put(proc: Path, pid: int, *, held: bool) -> Path:
    path = proc / f"{pid}/cmdline"
    path.parent.mkdir()
    if held:
        os.mkfifo(path)
    else:
        path.write_text("qemu\0")
    return path


def let_go(path: Path) -> bool:
    """Let a reader go; tell whether there was one."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as err:
        assert err.errno == errno.ENXIO
        return False
    return True


def descriptors_of(path: Path) -> int:
    """Count this process's descriptors of one file, in the tables of all threads."""
    # A thread may end, and others close some of theirs, meanwhile.
    tables = {thread.native_id: thread for thread in threading.enumerate() if thread.name == "step"}
    found = 0
    for tid in (os.getpid(), *tables):
        with contextlib.suppress(FileNotFoundError):
            found += sum(
                os.path.realpath(fd) == str(path) for fd in Path(f"/proc/self/task/{tid}/fd").iterdir()
            )
    return found


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def link_of(whose: str, fd: int) -> str:
    return str(Path(f"/proc/{whose}/fd/{fd}").readlink())


def is_at_end(read_end: int) -> bool:
    """Tell whether nobody has the pipe's other end open."""
    return bool(select.select([read_end], [], [], 0)[0])


def wait_for(what: threading.Event) -> None:
    assert what.wait(60)


class Counted(Held):
    """Notes each step that is begun, by the process that it is for."""

    def __init__(self, proc: Path) -> None:
        super().__init__(proc)
        self.begun: list[int] = []

    def await_end(self, pid: int, *args: Any, **words: Any) -> None:
        self.begun.append(pid)
        super().await_end(pid, *args, **words)
