"""Who uses DAMON?  Its settings are one for the host: there are kdamonds, or none."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from vmplace.errors import VmplaceError
from vmplace.outside import lines, printable, read_text, read_whole
from vmplace.topology.procfs import PROC, read_start_time

ADMIN = "kernel/mm/damon/admin/kdamonds"
MARK = "damon-kdamond-pid"
"""In the agent's folder: the pid of the kdamond that is its own and when that began, empty as long as it has
none, and how it is set or about to be, a line each in this order."""
TARGETS = "targets/nr_targets"


def foreign_user(sysfs: Path, mark: Path, proc: Path = PROC) -> str | None:
    """Return what somebody else has DAMON do ("on", "off"); None if nobody has, or ``mark`` says it is ours.

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
    # One that ended has no pid any more, one that just began has none yet: the settings tell whose it is.
    return "-1" in (now, pid or "-1") and bool(settings) and all(_is_set(root, one) for one in settings)


def _is_begun(root: Path, settings: Sequence[str]) -> bool:
    """Tell whether one that never ran is the one that an agent was setting up when it was killed.

    Else it is at least nobody's who has said what to watch.
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
