"""What does vmplace read, list, link or call of other processes, by which of its functions, in which thread?

Python tells of files that are opened and folders that are listed (audit events), on all threads; the rest is
wrapped.  A step that is bounded is done by a thread called "step" (vmplace/held.py).
"""

import ast
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import vmplace
from vmplace import native

PACKAGE = Path(vmplace.__file__).parent
OF_PATHS = ("stat", "lstat", "readlink", "access")
OF_THREADS = ("sched_getaffinity", "sched_setaffinity", "sched_getscheduler", "getpriority", "pidfd_open")
OF_FILES = {"open", "os.listdir", "os.scandir"}
OF_PROCESS = frozenset({
    "move_pages", "page_nids", "perf_count", "perf_trace", "placement_harvest", "placement_hints",
    "placement_info", "placement_move", "placement_open", "placement_replicate", "placement_roots",
    "read_pagemap",
})  # fmt: skip
"""Of the C core: what calls the kernel for another process, by its pid or a descriptor of it."""
OF_HOST = frozenset({
    "drain_lru", "folio_heads", "idle_collect", "idle_mark", "measure_streams", "perf_drain", "perf_newest",
    "perf_open",
    "placement_drain",
})  # fmt: skip
"""What calls it for the host, or reads memory that is shared with it; all others only compute."""


NEVER_WAITS = {
    ("listdir", "task"): "which threads there are, by RCU",
    ("stat", ""): "whom it acts for: its credentials by RCU",
    ("stat", "stat"): "whether it is there: nothing is read",
    ("stat", "task/*/stat"): "as above",
    ("open", "comm"): "task_lock, a spinlock (get_task_comm)",
    ("open", "task/*/comm"): "as above",
    ("open", "cgroup"): "css_set_lock, a spinlock (proc_cgroup_show)",
    ("open", "task/*/cgroup"): "as above",
    ("open", "task/*/schedstat"): "no lock (proc_pid_schedstat)",
    ("sched_getaffinity", ""): "a thread's pi_lock, a spinlock",
    ("sched_setaffinity", ""): "locks of CPUs; a kernel thread takes the thread to another one",
}
"""Read in Linux 6.12 (fs/proc, kernel/sched/syscalls.c), and tried by tests/native/test_held_guests.py.

"status" is not among them: who reads it as the process ends may have to end its memory map, and wait for its
I/O in a way that no kill ends (mmput, exit_aio)."""


@dataclass(frozen=True)
class Access:
    """One of them; ``name`` is that of the file below /proc/PID, with "*" for numbers in it."""

    call: str
    name: str
    is_bounded: bool
    functions: tuple[str, ...]
    """Of vmplace, the innermost first."""


class Accesses:
    """Collects what is done of the processes in ``proc``."""

    def __init__(self, proc: Path) -> None:
        self._process = re.compile(rf"{re.escape(str(proc))}/([0-9]+)(?:/(.*))?")
        self.seen: set[Access] = set()

    def note_path(self, call: str, path: object) -> None:
        """Note what a path is used for, if it is that of a process."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        match = self._process.fullmatch(os.fsdecode(path))
        if match is not None:
            self.note(call, re.sub(r"[0-9]+", "*", match[2] or ""))

    def note(self, call: str, name: str) -> None:
        """Note what vmplace does; what tests do themselves is their own."""
        functions = tuple(_functions(sys._getframe()))
        if functions:
            self.seen.add(Access(call, name, threading.current_thread().name == "step", functions))


_COLLECTING: list[Accesses] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _COLLECTING and event in OF_FILES:
        for accesses in _COLLECTING:
            accesses.note_path(event.removeprefix("os."), arguments[0])


def _functions(frame: FrameType | None) -> Iterator[str]:
    """Yield the functions of vmplace, but for those that read whatever they are given."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE) and path.name != "outside.py":
            names = [name for name in frame.f_code.co_qualname.split(".") if not name.startswith("<")]
            yield f"{path.relative_to(PACKAGE)}:{'.'.join(names)}"
        frame = frame.f_back


@contextmanager
def collected(proc: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accesses]:
    """Collect what is done of the processes in ``proc``, which no kernel knows: calls for them fail."""
    if not _HOOKED:
        # For good: Python takes none away.
        sys.addaudithook(_hear)
        _HOOKED.append(True)
    accesses = Accesses(proc)
    reading = _reading(accesses, native.read_pagemap, os.readlink)
    for name in OF_PATHS:
        monkeypatch.setattr(os, name, _noted_path(accesses, name, getattr(os, name)))
    for name in OF_THREADS:
        monkeypatch.setattr(os, name, _failing(accesses, name))
    for name in OF_PROCESS - {"read_pagemap"}:
        monkeypatch.setattr(native, name, _failing(accesses, name))
    monkeypatch.setattr(native, "read_pagemap", reading)
    _COLLECTING.append(accesses)
    try:
        yield accesses
    finally:
        _COLLECTING.remove(accesses)


_HOOKED: list[bool] = []


def _noted_path(accesses: Accesses, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        accesses.note_path(name, path)
        return real(path, *arguments, **options)

    return call


def _reading(
    accesses: Accesses, real: Callable[..., Any], readlink: Callable[[str], str]
) -> Callable[..., Any]:
    def call(fd: int, *arguments: Any) -> Any:
        path = readlink(f"/proc/thread-self/fd/{fd}")
        accesses.note_path("read_pagemap", path)
        return real(fd, *arguments)

    return call


def _failing(accesses: Accesses, name: str) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        accesses.note(name, "")
        raise ProcessLookupError

    return call


def places() -> dict[str, set[str]]:
    """Return where vmplace names a file of /proc, or makes such a call, by function: by its text."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE)
        # Run by people, of hosts that are not there.
        if module.parts[0] not in {"simulate", "fleet"}:
            for function, what in _iter_places(ast.parse(path.read_text()), ()):
                found.setdefault(f"{module}:{function}", set()).add(what)
    return found


def _iter_places(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        names = (*names, node.name)
    if _is_place(node):
        yield ".".join(names), ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        yield from _iter_places(child, names)


def _is_place(node: ast.AST) -> bool:
    found = False
    match node:
        case ast.BinOp(op=ast.Div(), left=left):
            found = _is_proc(left) or ast.unparse(left) == "Path('/proc')"
        case ast.FormattedValue(value=value) | ast.Call(func=ast.Attribute(value=value)):
            found = _is_proc(value)
        case ast.Attribute(value=ast.Name("os"), attr=name):
            found = name in OF_THREADS or name in {"kill", "process_vm_readv"}
        case ast.Attribute(value=ast.Name("native"), attr=name):
            found = name in OF_PROCESS
        case ast.Attribute(value=ast.Name("fcntl"), attr="ioctl"):
            found = True
        case ast.Constant(value=str(text)):
            found = text.startswith("/proc/") and " " not in text
    return found


def _is_proc(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lower().strip("_") == "proc"
