"""Find out who uses DAMON, whose settings are one for the whole host."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from vmplace.errors import VmplaceError
from vmplace.outside import lines, printable, read_text, read_whole
from vmplace.topology.procfs import PROC, read_start_time

ADMIN = "kernel/mm/damon/admin/kdamonds"
MARK = "damon-kdamond-pid"
"""A file in the agent's folder.  Its first line has the pid of the agent's kdamond and when that began, or is
empty while there is none.  Then follow the settings that it has, or is about to get, one a line."""
TARGETS = "targets/nr_targets"


def foreign_user(sysfs: Path, mark: Path, proc: Path = PROC) -> str | None:
    """Return the state of DAMON ("on", "off") if somebody else uses it, else None; ``mark`` notes our own.

    Raises OSError where DAMON's files cannot be read, OutsideError where they are not understood.
    """
    root = sysfs / ADMIN
    if not read_whole(root / "nr_kdamonds") or is_marked(root, mark, proc):
        return None
    return printable(read_text(root / "0/state").strip())


def begun_at(pid: str, proc: Path) -> str:
    """Return when a kdamond began, in ticks; empty where that cannot be read, or it does not run."""
    try:
        return str(read_start_time(int(pid), proc)) if pid.isdecimal() else ""
    except (OSError, VmplaceError):
        return ""


def is_marked(root: Path, mark: Path, proc: Path = PROC) -> bool:
    """Return whether the first kdamond is the one that ``mark`` tells of."""
    try:
        noted, *settings = lines(read_text(mark)) or [""]
    except OSError:
        return False
    pid, _, begun = noted.partition(" ")
    now = read_text(root / "0/pid").strip()
    if "-1" != now == pid:
        # Another one may have that pid later on.
        return not begun or begun == begun_at(now, proc)
    if now == "-1" and not pid:
        return _is_begun(root, settings)
    # A kdamond that ended, or has just begun, has no pid: the settings show whose it is.
    return "-1" in (now, pid or "-1") and bool(settings) and all(_is_set(root, one) for one in settings)


def _is_begun(root: Path, settings: Sequence[str]) -> bool:
    """Tell whether a kdamond that never ran is one that an agent was setting up when it was killed.

    It also counts as such if nobody has set what it is to watch.
    """
    if any(one.startswith(f"{TARGETS}=") for one in takewhile(lambda one: _is_set(root, one), settings)):
        return True
    return _is_set(root, f"{TARGETS}=0") or not (root / "0/contexts/0" / TARGETS).exists()


def _is_set(root: Path, setting: str) -> bool:
    path, _, value = setting.partition("=")
    try:
        return read_text(root / "0/contexts/0" / path).strip() == value
    except OSError:
        return False
