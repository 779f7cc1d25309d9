"""Which process is a guest, so that a reused pid is never mistaken for it?"""

import logging
from dataclasses import dataclass
from pathlib import Path

from vmplace import held
from vmplace.outside import SMALL_BYTES, read_text
from vmplace.topology import procfs
from vmplace.topology.guest import GuestTopology

LOG = logging.getLogger(__name__)
PROC = Path("/proc")


@dataclass(frozen=True)
class GuestIdentity:
    """A guest's process; (boot_id, pid, start_time) is unique for ever, ``name`` is for people.

    ``start_time`` is in clock ticks since boot (field 22 of /proc/PID/stat).  ``pid_namespace``: the one in
    which the process has that pid, by its inode; 0 where that is not known.
    """

    name: str
    pid: int
    start_time: int
    boot_id: str
    pid_namespace: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        """Return what tells this process from all others."""
        return self.boot_id, self.pid, self.start_time


def read_boot_id(proc: Path = PROC) -> str:
    """Return the kernel's random id of this boot."""
    return read_text(proc / "sys/kernel/random/boot_id", SMALL_BYTES).strip()


def read_pid_namespace(proc: Path = PROC) -> int:
    """Return this process' PID namespace by its inode, as namespaces(7) has it; 0 where that is not known."""
    try:
        return (proc / "self/ns/pid").stat().st_ino
    except OSError:
        return 0


def read_identity(guest: GuestTopology, proc: Path = PROC) -> GuestIdentity:
    """Return the identity of ``guest`` in this boot."""
    boot_id, namespace = read_boot_id(proc), read_pid_namespace(proc)
    return GuestIdentity(guest.name, guest.pid, guest.start_time, boot_id, namespace)


def parse_start_time(stat: str) -> int | None:
    """Return field 22 of a /proc/PID/stat line, or None for a process that has ended (zombie, dead).

    Raises OutsideError for what is no such line.
    """
    # The command name may hold blanks and parentheses; the last ")" ends it.
    state = stat.rpartition(")")[2].lstrip()[:1]
    return None if state in tuple("ZXx") else procfs.parse_start_time(stat)


def read_start_time(pid: int, proc: Path = PROC, *, tid: int | None = None) -> int | None:
    """Return when process ``pid`` (or its thread ``tid``) started, in ticks; None when it is gone.

    Raises HeldError if the process holds that up.
    """
    path = proc / str(pid) / (f"task/{tid}/stat" if tid else "stat")
    # Waits for nothing: who held a reader up and ended is gone.
    if not path.exists():
        return None
    try:
        # Its name in it is the process' to choose, and need not be UTF-8.
        return parse_start_time(held.bounded(pid, lambda: read_text(path, SMALL_BYTES)))
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(identity: GuestIdentity, proc: Path = PROC) -> bool:
    """Tell whether the very process still runs (same boot, same pid, same start time).

    Raises HeldError if the process with that pid holds up whoever asks.
    """
    if identity.boot_id != read_boot_id(proc):
        return False
    return read_start_time(identity.pid, proc) == identity.start_time


def is_foreign(identity: GuestIdentity, proc: Path = PROC) -> bool:
    """Tell whether the process is known to be of another PID namespace of this boot: its pid says nothing."""
    if not identity.pid_namespace or identity.boot_id != read_boot_id(proc):
        return False
    return read_pid_namespace(proc) not in {0, identity.pid_namespace}


def has_ended(identity: GuestIdentity, proc: Path = PROC) -> bool:
    """Tell whether the process has surely ended: one that cannot be asked may still run."""
    try:
        return not is_foreign(identity, proc) and not is_alive(identity, proc)
    except Exception:
        LOG.debug("guest %s may still run: it cannot be read", identity.name, exc_info=True)
        return False
