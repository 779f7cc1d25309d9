"""Which process did libvirt start for a domain?  The process' own command line does not prove it.

Any user can read a guest's UUID and start a process with the same one.  So these are asked, in turn:

1. /run/libvirt/qemu/NAME.pid, which libvirtd writes and nobody but root can;
2. where there is no such file, the cgroup that libvirt put the process into: only root moves a process there.
   Its name holds the domain's, without some signs and cut (virDomainGenerateMachineName).  A group of that
   name within a service, a scope or a user's slice does not count: systemd lets users and containers make it.
"""

import contextlib
import re
from pathlib import Path

from vmplace.errors import OutsideError, VmplaceError
from vmplace.outside import MOST_BITS, lines, read_whole
from vmplace.topology.procfs import PROC, read_cgroup

RUN = Path("/run/libvirt/qemu")
# machine-qemu\x2d7\x2ddb1.scope by systemd, qemu-7-db1.libvirt-qemu without.
MACHINE = re.compile(r"(?:machine-)?qemu-\d+-(.+)\.(?:scope|libvirt-qemu)")
# What libvirt's <partition> becomes: slices by systemd, else the root's "machine" and what is below it.
PARTITION = re.compile(r".+\.slice|machine|.+\.partition")
ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
CUT_LETTERS = 40
"""A machine's name has 64 characters at most: of a domain's, at least so many remain."""


def is_of_domain(pid: int, name: str, *, run: Path = RUN, proc: Path = PROC) -> bool:
    """Tell whether process ``pid`` is the one that libvirt started for the domain called ``name``."""
    if not name or "/" in name:
        return False
    try:
        return read_whole(run / f"{name}.pid", MOST_BITS) == pid
    except FileNotFoundError:
        return _in_cgroup_of(pid, name, proc)
    except (OSError, OutsideError):
        return False


def reported_pids(run: Path = RUN) -> frozenset[int]:
    """Return the processes that libvirt has started by its pid files; other domains are left out."""
    pids = set()
    for path in run.glob("*.pid"):
        # Domains end meanwhile, and a file may be half written.
        with contextlib.suppress(OSError, OutsideError):
            pids.add(read_whole(path, MOST_BITS))
    return frozenset(pids)


def _in_cgroup_of(pid: int, name: str, proc: Path) -> bool:
    try:
        text = read_cgroup(pid, proc)
    except VmplaceError:
        return False
    return any(_holds_machine_of(line.split(":", 2)[-1], name) for line in lines(text))


def _holds_machine_of(path: str, name: str) -> bool:
    for part in path.strip("/").split("/"):
        if _is_machine_of(part, name):
            return True
        if part == "user.slice" or not PARTITION.fullmatch(part):
            return False
    return False


def _is_machine_of(part: str, name: str) -> bool:
    plain = ESCAPED.sub(lambda match: chr(int(match[1], 16)), part)
    machine = MACHINE.fullmatch(plain)
    if machine is None:
        return False
    found, wanted = _letters(machine[1]), _letters(name)
    return found == wanted or (len(found) >= CUT_LETTERS and wanted.startswith(found))


def _letters(name: str) -> str:
    return "".join(char for char in name if char.isascii() and char.isalnum())
