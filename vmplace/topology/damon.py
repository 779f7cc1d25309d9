"""Who uses DAMON?  Its settings are one for the host: there are kdamonds, or none."""

from pathlib import Path

from vmplace.outside import lines, printable, read_text, read_whole

ADMIN = "kernel/mm/damon/admin/kdamonds"
MARK = "damon-kdamond-pid"
"""In the agent's folder: the pid of the kdamond that is its own, and how it is set, a line each."""


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
    # One that ended has no pid any more, one that just began has none yet: the settings tell whose it is.
    return "-1" in (now, pid or "-1") and bool(settings) and all(_is_set(root, one) for one in settings)


def _is_set(root: Path, setting: str) -> bool:
    path, _, value = setting.partition("=")
    try:
        return read_text(root / "0/contexts/0" / path).strip() == value
    except OSError:
        return False
