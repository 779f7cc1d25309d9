"""Which CPUs does a thread's cpuset leave to it?  cgroup-v2.rst: cpuset.cpus.effective; cpusets(7) for v1."""

from pathlib import Path

from vmplace.errors import OutsideError, VmplaceError
from vmplace.outside import SMALL_BYTES, lines, read_text
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.procfs import read_cgroup

V2, V1 = "cpuset.cpus.effective", "cpuset.effective_cpus"


def read_cpuset(pid: int, tid: int, proc: Path, sysfs: Path) -> frozenset[int] | None:
    """Return the CPUs of the nearest cpuset that a thread is in; None where there is none, or no thread."""
    try:
        text = read_cgroup(pid, proc, tid=tid)
    except VmplaceError:
        return None
    for _, controllers, path in (line.split(":", 2) for line in lines(text) if line.count(":") >= 2):
        if controllers == "":
            root, name = sysfs / "fs/cgroup", V2
        elif "cpuset" in controllers.split(","):
            root, name = sysfs / "fs/cgroup/cpuset", V1
        else:
            continue
        if (cpus := _nearest(root, path, name)) is not None:
            return cpus
    return None


def _nearest(root: Path, path: str, name: str) -> frozenset[int] | None:
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        if ".." in folder.parts or not folder.is_relative_to(root):
            return None
        try:
            return frozenset(parse_cpulist(read_text(folder / name, SMALL_BYTES)))
        except (OSError, OutsideError):
            # The controller may be off here, and on further up.
            continue
    return None
