"""What do the cgroups of a thread say, from its own up?  cgroup-v2.rst; cgroups(7) for version 1."""

from collections.abc import Iterator
from pathlib import Path

from vmplace.errors import OutsideError, VmplaceError
from vmplace.outside import SMALL_BYTES, lines, read_text
from vmplace.topology.procfs import PROC, read_cgroup

SYSFS = Path("/sys")


def iter_texts(  # noqa: PLR0913 - seams but for the first five
    pid: int, tid: int, controller: str, v2: str, v1: str, proc: Path = PROC, sysfs: Path = SYSFS
) -> Iterator[str]:
    """Yield what file ``v2`` of its cgroup says, or ``v1`` of version 1, then those of the groups above.

    A group that lacks the file is left out: the controller may be off there.
    """
    try:
        text = read_cgroup(pid, proc, tid=tid)
    except VmplaceError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines(text) if line.count(":") >= 2):
        if controllers == "":
            yield from _upwards(sysfs / "fs/cgroup", path, v2)
        elif controller in controllers.split(","):
            yield from _upwards(sysfs / "fs/cgroup" / controller, path, v1)


def _upwards(root: Path, path: str, name: str) -> Iterator[str]:
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        if ".." in folder.parts or not folder.is_relative_to(root):
            return
        try:
            text = read_text(folder / name, SMALL_BYTES)
        except (OSError, OutsideError):
            continue
        yield text
