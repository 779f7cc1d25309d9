"""Find the QEMU process of each pod by its cgroup, whose path has the pod's uid.  Only /proc is read.

Kubelet names a pod's cgroup ``podUID`` (cgroupfs driver) or ``kubepods-…podUID.slice`` with underscores
(systemd driver); container runtimes add folders below it.  A group of that name in a user's slice does not
count: systemd lets users make any there.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.outside import lines
from vmplace.topology.procfs import PROC, iter_pids, read_cgroup, read_comm, read_start_time

_HEX = "[0-9a-f]"
_POD = re.compile(rf"pod({_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}})(?![-_0-9a-z])")
_ABOVE = re.compile(r"^(/\.\.)+")
USERS = "/user.slice/"
QEMU = "qemu"
"""What the name of the process begins with: qemu-kvm, qemu-system-x86."""


def pod_uid(cgroup: str) -> str | None:
    """Return the pod's uid that /proc/PID/cgroup tells, None for a process of no pod."""
    # Seen from a container, what is outside of its own control group begins with "/..".
    paths = (_ABOVE.sub("", line.split(":", 2)[-1]) for line in lines(cgroup))
    found = [uid for path in paths if not path.startswith(USERS) for uid in _POD.findall(path)]
    # The innermost: a cluster may run in pods of another one.
    return found[-1].replace("_", "-") if found else None


def qemu_by_pod(proc: Path = PROC) -> Mapping[str, tuple[int, int]]:
    """Return pid and start time of the QEMU in each pod that has one, by the pod's uid."""
    found: dict[str, tuple[int, int]] = {}
    for pid in iter_pids(proc):
        try:
            if not read_comm(pid, proc).startswith(QEMU):
                continue
            uid = pod_uid(read_cgroup(pid, proc))
            if uid is not None:
                found[uid] = (pid, read_start_time(pid, proc))
        except (OSError, GuestGoneError, UnsupportedHostError):
            # It ended, or is not ours to look at: the next look finds it if it is there.
            continue
    return found
