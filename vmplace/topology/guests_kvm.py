"""Which processes run KVM guests, whoever started them?

Those that hold a VM and at least one vCPU of KVM, seen by the names of their descriptors.  A look at
every descriptor of every process is dear on a busy host, so a process without a VM is looked at again
after 1, 2, 4 … 60 seconds.  Anybody can make processes that are dear to look at: once a look has lasted too
long, those that are left are as they were, and come first in the next look.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vmplace.errors import GuestGoneError, UnsupportedHostError, VmplaceError
from vmplace.held import HeldError
from vmplace.outside import error_text
from vmplace.topology.movability import pinning
from vmplace.topology.procfs import MOST_DESCRIPTORS, PROC, iter_pids, read_descriptors, read_start_time
from vmplace.topology.vcpus import VCPU_DESCRIPTOR, VM_DESCRIPTOR

LOG = logging.getLogger(__name__)
LONGEST_WAIT_S = 60.0
MOST_OF_KVM, MOST_PINNING = 1 << 13, 4
"""KVM has at most 4096 vCPUs in a VM; of what pins memory, one is enough to tell."""


@dataclass(frozen=True)
class KvmProcess:
    """A process that runs a guest; ``descriptors`` says what each of its open files is."""

    pid: int
    start_time: int
    descriptors: Mapping[int, str]

    @property
    def identity(self) -> tuple[int, int]:
        """Return (pid, start time)."""
        return self.pid, self.start_time


@dataclass(frozen=True)
class Skipped:
    """A process (or a domain, then ``pid`` is None) that could not be taken up, and why."""

    pid: int | None
    reason: str


class KvmProcesses:
    """The KVM processes of the host, found again each time; remembers where nothing was found."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        # By pid: start time, when to look again, how long to wait then.
        self._idle: dict[int, tuple[int, float, float]] = {}
        self._known: dict[int, KvmProcess] = {}
        self._looked_at: dict[int, float] = {}

    def find(self, is_late: Callable[[], bool] = lambda: False) -> tuple[list[KvmProcess], list[Skipped]]:
        """Return the KVM processes, ascending by pid, and the processes that cannot be read.

        Once ``is_late()``, only what was known before is returned of the rest.
        """
        found, skipped = [], []
        pids = sorted(iter_pids(self._proc))
        for pid in sorted(pids, key=lambda pid: self._looked_at.get(pid, 0.0)):
            try:
                process = self._as_known(pid) if is_late() else self._look(pid)
            except GuestGoneError:
                continue
            except UnsupportedHostError as err:
                process = self._known.get(pid) if isinstance(err, HeldError) else None
                if process is None:
                    skipped.append(Skipped(pid, str(err)))
                    continue
                # It is there, and nothing is done to it until it can be read.
            except Exception as err:
                # Whatever a process can do to its files concerns that process alone.
                skipped.append(unread(pid, err))
                continue
            if process is not None:
                found.append(process)
        there = set(pids)
        self._idle = {pid: idle for pid, idle in self._idle.items() if pid in there}
        self._looked_at = {pid: at for pid, at in self._looked_at.items() if pid in there}
        self._known = {process.pid: process for process in found}
        return sorted(found, key=lambda process: process.pid), skipped

    def _as_known(self, pid: int) -> KvmProcess | None:
        known = self._known.get(pid)
        return known if known and read_start_time(pid, self._proc) == known.start_time else None

    def _look(self, pid: int) -> KvmProcess | None:
        start_time, now = read_start_time(pid, self._proc), self._clock()
        known, due, wait = self._idle.get(pid, (start_time, now, 0.5))
        if known == start_time and now < due:
            return None
        self._looked_at[pid] = now
        descriptors = read_descriptors(pid, self._proc)
        if not is_guest(descriptors):
            wait = min(2 * wait, LONGEST_WAIT_S) if known == start_time else 1.0
            self._idle[pid] = start_time, now + wait, wait
            return None
        self._idle.pop(pid, None)
        if len(descriptors) >= MOST_DESCRIPTORS:
            raise UnsupportedHostError(f"process {pid} has {MOST_DESCRIPTORS} files open, or more")
        # Read before the descriptors, so both are of one process unless the pid was used again.
        if read_start_time(pid, self._proc) != start_time:
            raise GuestGoneError(f"process {pid} ended")
        return KvmProcess(pid, start_time, telling(descriptors))


def unread(pid: int, err: Exception) -> Skipped:
    """Return the note on a process that was left out because of ``err``."""
    if isinstance(err, VmplaceError):
        return Skipped(pid, f"left alone: {err}")
    LOG.debug("pid=%d left alone", pid, exc_info=err)
    return Skipped(pid, f"left alone: {type(err).__name__}: {error_text(err)}")


def telling(descriptors: Mapping[int, str]) -> dict[int, str]:
    """Return the descriptors that tell something of a guest: they are kept, and anybody may open 65,536.

    Raises UnsupportedHostError for a guest with more of KVM's than any VMM has.
    """
    of_kvm = {
        fd: sys.intern(target)
        for fd, target in descriptors.items()
        if target == VM_DESCRIPTOR or VCPU_DESCRIPTOR.fullmatch(target)
    }
    if len(of_kvm) > MOST_OF_KVM:
        raise UnsupportedHostError(f"it has {len(of_kvm)} files of KVM open, more than {MOST_OF_KVM}")
    return of_kvm | dict(pinning(descriptors)[:MOST_PINNING])


def is_guest(descriptors: Mapping[int, str]) -> bool:
    """Tell whether the descriptors are those of a guest; a VM without vCPU is QEMU being probed."""
    targets = set(descriptors.values())
    return VM_DESCRIPTOR in targets and any(map(VCPU_DESCRIPTOR.fullmatch, targets))
