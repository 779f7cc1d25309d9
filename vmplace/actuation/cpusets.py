"""Which CPUs does a thread's cpuset leave to it?  cgroup-v2.rst: cpuset.cpus.effective; cpusets(7) for v1."""

from pathlib import Path

from vmplace.errors import OutsideError
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.thread_cgroup import iter_texts

V2, V1 = "cpuset.cpus.effective", "cpuset.effective_cpus"


def read_cpuset(pid: int, tid: int, proc: Path, sysfs: Path) -> frozenset[int] | None:
    """Return the CPUs of the nearest cpuset that a thread is in; None where there is none, or no thread."""
    for text in iter_texts(pid, tid, "cpuset", V2, V1, proc, sysfs):
        try:
            return frozenset(parse_cpulist(text))
        except OutsideError:
            continue
    return None
