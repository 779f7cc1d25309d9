"""Find out who uses DAMON, whose settings are one for the whole host."""

import errno
import time
from dataclasses import dataclass
from pathlib import Path

from vmplace.errors import VmplaceError
from vmplace.outside import SMALL_BYTES, lines, printable, read_text, read_whole
from vmplace.topology.procfs import PROC, read_start_time

ADMIN = "kernel/mm/damon/admin/kdamonds"
TRACE_POINT = "kernel/tracing/events/damon/damon_aggregated/format"
OPERATIONS = "fvaddr"
"""How processes are watched: fixed ranges of their virtual addresses."""
OPERATIONS_CURE = "boot a kernel with CONFIG_DAMON_VADDR=y"
OPERATIONS_UNKNOWN = " (this helps only if the kernel has CONFIG_DAMON_VADDR=y)"
TRACE_POINT_CURE = "mount -t tracefs tracefs /sys/kernel/tracing"
BUSY_S, BUSY_STEP_S = 1.0, 0.002
"""How long to try again: each kdamond takes DAMON's lock for a moment in each sample, and whoever meets it
gets EBUSY (mm/damon/sysfs.c, damon_sysfs_cmd_request_callback)."""
MARK = "damon-kdamonds"
"""A file in the agent's folder.  Its first line has how many kdamonds the agent has prepared.  Then follows a
line for each that it began, or is about to: its number, the pid of the process that it watches, and once it
runs its own pid and when it began."""

EXCLUSIVE = ("damon_stat", "damon_reclaim", "damon_lru_sort")
"""Modules of the kernel beside which no kdamond of anybody else runs (mm/damon/core.c, damon_start).

DAMON_STAT is on from the boot with CONFIG_DAMON_STAT_ENABLED_DEFAULT (Linux 6.17)."""


@dataclass(frozen=True)
class DamonUse:
    """By whom else DAMON is in use, and how that is ended."""

    why: str
    cure: str


@dataclass(frozen=True)
class Begun:
    """A kdamond that an agent began, or was about to: ``pid`` is "" until it is known to run."""

    slot: int
    target_pid: int
    pid: str = ""
    began: str = ""

    def line(self) -> str:
        """Return its line in the mark."""
        return f"{self.slot} {self.target_pid} {self.pid} {self.began}".rstrip()

    def runs(self, proc: Path = PROC) -> bool:
        """Tell whether it runs; another one may have that pid later on."""
        return bool(self.pid) and bool(now := begun_at(self.pid, proc)) and self.began in ("", now)


@dataclass(frozen=True)
class Mark:
    """What the file MARK says; ``kdamonds`` are how many there are."""

    kdamonds: int
    begun: tuple[Begun, ...]


def read_mark(path: Path) -> Mark | None:
    """Return what an agent noted, or None where there is nothing that can be understood."""
    try:
        count, *rest = lines(read_text(path))
        begun = tuple(_begun(line) for line in rest)
        return Mark(int(count), begun)
    except (OSError, ValueError, IndexError, TypeError):
        return None


def _begun(line: str) -> Begun:
    slot, target_pid, *running = line.split()
    return Begun(int(slot), int(target_pid), *running[:2])


def foreign_use(sysfs: Path, mark: Path, proc: Path = PROC) -> DamonUse | None:
    """Return somebody else's use of DAMON, if there is any; ``mark`` notes our own.

    Raises OSError where DAMON's files cannot be read, OutsideError where they are not understood.
    """
    root = sysfs / ADMIN
    if (module := _exclusive_module(sysfs)) is not None:
        switch = sysfs / f"module/{module}/parameters/enabled"
        return DamonUse(
            f"by the kernel's module {module}, which shares it with nobody",
            f"echo N > {switch}; for each boot: {module}.enabled=N on the kernel's command line",
        )
    if not (count := read_whole(root / "nr_kdamonds")) or is_marked(root, mark, proc):
        return None
    states = [printable(read_patiently(root / f"{slot}/state")) for slot in range(count)]
    end = f"echo 0 > {root}/nr_kdamonds"
    if seen_operations(root, count) is None:
        end += OPERATIONS_UNKNOWN
    running = [slot for slot, state in enumerate(states) if state == "on"]
    if not running:
        return DamonUse(f"by somebody else ({states[0]})", f"stop its owner, then: {end}")
    off = "; ".join(f"echo off > {root}/{slot}/state" for slot in running)
    cure = f"stop its owner, or, which ends what it watches and forgets its settings: {off}; then: {end}"
    return DamonUse("by somebody else (on)", cure)


def known_operations(sysfs: Path) -> tuple[str, ...] | None:
    """Return the operations that this kernel's DAMON has; None while it is in use and nothing shows them.

    The kernel tells only beside a kdamond.  Where none is, one is prepared for that, never turned on, and
    taken away again.  Raises OSError, OutsideError.
    """
    count, root = sysfs / ADMIN / "nr_kdamonds", sysfs / ADMIN / "0/contexts"
    if there := read_whole(count):
        return seen_operations(sysfs / ADMIN, there)
    count.write_text("1")
    try:
        (root / "nr_contexts").write_text("1")
        return tuple(map(printable, read_patiently(root / "0/avail_operations").split()))
    finally:
        # An agent that began meanwhile has prepared more.
        if read_whole(count) == 1:
            count.write_text("0")


def seen_operations(root: Path, count: int) -> tuple[str, ...] | None:
    """Return what the first context of these kdamonds says of them all; None where none has one."""
    for slot in range(count):
        try:
            return tuple(map(printable, read_text(root / f"{slot}/contexts/0/avail_operations").split()))
        except OSError:
            continue
    return None


def lacking(operations: tuple[str, ...] | None) -> str | None:
    """Return why DAMON with these operations cannot watch guests; None if it can, or nobody knows."""
    if operations is None or OPERATIONS in operations:
        return None
    return f"DAMON cannot watch processes (only {' '.join(operations) or 'nothing'})"


def _exclusive_module(sysfs: Path) -> str | None:
    """Return the module that has DAMON to itself, or None; only root may read whether it is on."""
    for module in EXCLUSIVE:
        try:
            said = read_text(sysfs / f"module/{module}/parameters/enabled", SMALL_BYTES)
        except OSError:
            continue
        if said.strip() == "Y":
            return module
    return None


def read_patiently(path: Path) -> str:
    """Return what a file of DAMON says; raises OSError, with EBUSY if somebody keeps DAMON's lock."""
    end = time.monotonic() + BUSY_S
    while True:
        try:
            return read_text(path, SMALL_BYTES).strip()
        except OSError as err:
            if err.errno != errno.EBUSY or time.monotonic() >= end:
                raise
        time.sleep(BUSY_STEP_S)


def begun_at(pid: str, proc: Path) -> str:
    """Return when a kdamond began, in ticks; empty where that cannot be read, or it does not run."""
    try:
        return str(read_start_time(int(pid), proc)) if pid.isdecimal() else ""
    except (OSError, VmplaceError):
        return ""


def is_marked(root: Path, mark: Path, proc: Path = PROC) -> bool:
    """Return whether the kdamonds are those that ``mark`` tells of: as many, and none runs that it lacks.

    Raises OSError.
    """
    noted = read_mark(mark)
    if noted is None or read_whole(root / "nr_kdamonds") != noted.kdamonds:
        return False
    known = {one.slot: one for one in noted.begun}
    running = ((slot, read_patiently(root / f"{slot}/pid")) for slot in range(noted.kdamonds))
    return all(pid == "-1" or _is_ours(root, known.get(slot), pid, proc) for slot, pid in running)


def _is_ours(root: Path, noted: Begun | None, pid: str, proc: Path) -> bool:
    if noted is None:
        return False
    if noted.pid:
        return noted.pid == pid and noted.began in ("", begun_at(pid, proc))
    # The agent was killed as it began this one: what it watches shows whose it is.
    watched = root / f"{noted.slot}/contexts/0/targets/0/pid_target"
    return read_text(watched).strip() == str(noted.target_pid)
