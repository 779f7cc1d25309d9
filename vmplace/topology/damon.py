"""Who uses DAMON?  Its settings are one for the host: there are kdamonds, or none."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from vmplace.outside import lines, printable, read_text, read_whole

ADMIN = "kernel/mm/damon/admin/kdamonds"
MARK = "damon-kdamond-pid"
"""In the agent's folder: the pid of the kdamond that is its own, empty as long as it has none, and how it is
set or about to be, a line each in this order."""
TARGETS = "targets/nr_targets"


def foreign_user(sysfs: Path, mark: Path) -> str | None:
    """Return what somebody else has DAMON do ("on", "off"); None if nobody has, or ``mark`` says it is ours.

    Raises OSError where DAMON's files cannot be read, OutsideError where they are not understood.
    """
    root = sysfs / ADMIN
    if not read_whole(root / "nr_kdamonds") or is_marked(root, mark):
        return None
    return printable(read_text(root / "0/state").strip())


def is_marked(root: Path, mark: Path) -> bool:
    """Return whether the first kdamond is the one that ``mark`` tells of."""
    try:
        pid, *settings = lines(read_text(mark)) or [""]
    except OSError:
        return False
    now = read_text(root / "0/pid").strip()
    if "-1" != now == pid:
        return True
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
