"""Which CPUs does a thread's cpuset leave to it?  cgroup-v2.rst: cpuset.cpus.effective; cpusets(7) for v1."""

from pathlib import Path

from vmplace.errors import OutsideError
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.thread_cgroup import iter_texts

V2, V1 = "cpuset.cpus.effective", "cpuset.effective_cpus"


def read_cpuset(pid: int, tid: int, proc: Path, sysfs: Path) -> frozenset[int] | None:
    """Return the CPUs of the nearest cpuset that a thread is in; None where there is none, or no thread."""
    listed = read_cpuset_list(pid, tid, proc, sysfs)
    return None if listed is None else frozenset(parse_cpulist(listed))


def read_cpuset_list(pid: int, tid: int, proc: Path, sysfs: Path) -> str | None:
    """Return the same as the kernel writes it; none of these CPUs is offline."""
    for text in iter_texts(pid, tid, "cpuset", V2, V1, proc, sysfs):
        try:
            parse_cpulist(text)
        except OutsideError:
            continue
        return text.strip()
    return None
