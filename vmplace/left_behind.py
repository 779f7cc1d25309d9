"""Which processes did a killed agent leave behind, that make calls which nothing ends (apart.py)?

Nothing is begun for the guests that they wait for.  Such a process is known by its name, whose it is and what
it runs: names alone prove nothing.
"""

import contextlib
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from vmplace import held, native
from vmplace.apart import DAMON_KEY
from vmplace.held import HeldError
from vmplace.outside import SMALL_BYTES, read_text
from vmplace.users import is_nobody_but

LOG = logging.getLogger(__name__)
GONE_S = 2.0
"""A process that waits for no guest ends this soon after its agent, even on a busy machine."""
NAME = "vmpmove "
"""Before the pid of the process that is worked on, in a process' own name; DAMON has no pid."""
DAMON = "damon"
PARENT, START_TIME = 1, 19
"""Of the fields of /proc/PID/stat that follow the name."""
UNIFIED, ONE_PID = re.compile(r"^0::.*$", re.MULTILINE), re.compile(r"^NSpid:\s*\d+$", re.MULTILINE)
"""In /proc/PID/cgroup, and in its status."""


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
