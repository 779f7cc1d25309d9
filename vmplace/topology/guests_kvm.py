"""Which processes run KVM guests, whoever started them?

A guest's process holds a VM and at least one vCPU of KVM, which the names of its descriptors show.  To read
every descriptor of every process takes long on a busy host, so a process without a VM is looked at again
after 1, 2, 4 … 60 seconds, and a thread of the kernel after 60.  Any user can start thousands of processes
that take long to read.  So a look ends after a while; processes that it did not reach keep their last result,
and come first in the next look.

Limits: a user is the effective uid of a process.  So setuid programs count as root's, and can delay guests of
root that libvirt did not start.
"""

import contextlib
import heapq
import itertools
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from vmplace.cpu_time import thread_cpu_ns
from vmplace.errors import GuestGoneError, UnsupportedHostError, VmplaceError
from vmplace.held import HeldError
from vmplace.outside import error_text
from vmplace.topology.movability import pinning
from vmplace.topology.procfs import (
    MOST_DESCRIPTORS,
    PROC,
    iter_pids,
    read_descriptors,
    read_start,
    read_start_time,
)
from vmplace.topology.vcpus import VCPU_DESCRIPTOR, VM_DESCRIPTOR
from vmplace.users import owner_of

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


_Look = Callable[[int, int], KvmProcess | None]
"""Of a pid, with the inode of its directory."""


@dataclass(frozen=True)
class _Idle:
    """A process that runs no guest: when to look at it again (s), and how long to wait then.

    ``inode`` of its directory: as long as that is the same, it is the same process, which costs nothing to
    see.  It changes when the kernel frees its cache, too.
    """

    start_time: int
    inode: int
    due: float
    wait_s: float


class KvmProcesses:
    """The KVM processes of the host, found again each time; remembers where nothing was found.

    Anybody may have thousands of processes, each with so many files open that to look at it takes 0.2 s.  So
    guests that are known, and what libvirt started, come before all others, which have a limit of their
    own; within that, the users take turns.
    """

    def __init__(
        self,
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
        *,
        cpu: Callable[[], float] = lambda: thread_cpu_ns() / 1e9,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """``cpu`` tells the CPU seconds used; ``beat`` is called for each process that is looked at."""
        self._proc = proc
        self._clock, self._cpu, self._beat = clock, cpu, beat
        self._idle: dict[int, _Idle] = {}
        self._known: dict[int, KvmProcess] = {}
        self._looked_at: dict[int, float] = {}

    def find(
        self,
        limit: Callable[[], Callable[[], bool]] = lambda: lambda: False,
        first: Collection[int] = (),
    ) -> tuple[list[KvmProcess], list[Skipped]]:
        """Return the KVM processes, ascending by pid, and the processes that cannot be read.

        ``limit`` begins a limit and returns what tells whether it is over: one for ``first``, pids of
        libvirt, and for what was known before; another one for the rest.  What was known and is not
        looked at is what it was.
        """
        stats = self._stats()
        found: dict[int, KvmProcess] = {}
        skipped: list[Skipped] = []
        known = [pid for pid in stats if pid in self._known or pid in first]
        known.sort(key=lambda pid: (pid not in first, self._looked_at.get(pid, 0.0), pid))
        others = self._in_turns(set(stats).difference(known), stats)
        for pid, look in itertools.chain(
            self._until(limit(), self._due(known, stats), self._as_known),
            self._until(limit(), others),
        ):
            self._beat()
            process = self._tried(pid, partial(look, pid, stats[pid].st_ino), skipped)
            if process is not None:
                found[pid] = process
        self._idle = {pid: idle for pid, idle in self._idle.items() if pid in stats}
        self._looked_at = {pid: at for pid, at in self._looked_at.items() if pid in stats}
        self._known = found
        return sorted(found.values(), key=lambda process: process.pid), skipped

    def _tried(
        self, pid: int, look: Callable[[], KvmProcess | None], skipped: list[Skipped]
    ) -> KvmProcess | None:
        """Return what the look tells; whatever a process can do to its files concerns that process alone."""
        try:
            return look()
        except GuestGoneError:
            return None
        except HeldError as err:
            if pid in self._known:
                # It is there, and nothing is done to it until it can be read.
                return self._known[pid]
            skipped.append(Skipped(pid, str(err)))
        except UnsupportedHostError as err:
            skipped.append(Skipped(pid, str(err)))
        except Exception as err:
            skipped.append(unread(pid, err))
        return None

    def _stats(self) -> dict[int, os.stat_result]:
        """Return whose each process is, and its inode; this waits for nobody's lock."""
        stats = {}
        for pid in iter_pids(self._proc):
            with contextlib.suppress(OSError):
                stats[pid] = os.stat(f"{self._proc}/{pid}")  # noqa: PTH116 - of each process: a Path is slow
        return stats

    def _due(self, pids: Iterable[int], stats: Mapping[int, os.stat_result]) -> Iterator[int]:
        """Yield those that were not looked at a short while ago and found to run no guest."""
        now = self._clock()
        for pid in pids:
            idle = self._idle.get(pid)
            if idle is None or now >= idle.due or idle.inode != stats[pid].st_ino:
                yield pid

    def _until(
        self, is_late: Callable[[], bool], pids: Iterable[int], else_look: _Look | None = None
    ) -> Iterator[tuple[int, _Look]]:
        """Yield how to look at each process: as long as it is not late, in full."""
        for pid in pids:
            if not is_late():
                yield pid, self._look
            elif else_look is None:
                return
            else:
                yield pid, else_look

    def _in_turns(self, pids: Iterable[int], stats: Mapping[int, os.stat_result]) -> Iterator[int]:
        """Yield those that are due: next is always one of the user whose have taken the least CPU time.

        Of one user's, those come first that were looked at longest ago.
        """
        queues: dict[int, deque[int]] = {}
        for pid in sorted(self._due(pids, stats), key=lambda pid: (self._looked_at.get(pid, 0.0), pid)):
            queues.setdefault(owner_of(stats[pid].st_uid), deque()).append(pid)
        turns = [(0.0, user) for user in sorted(queues)]
        while turns:
            taken_s, user = heapq.heappop(turns)
            began = self._cpu()
            yield queues[user].popleft()
            if queues[user]:
                heapq.heappush(turns, (taken_s + self._cpu() - began, user))

    def _as_known(self, pid: int, _inode: int) -> KvmProcess | None:
        known = self._known.get(pid)
        return known if known and read_start_time(pid, self._proc) == known.start_time else None

    def _look(self, pid: int, inode: int) -> KvmProcess | None:
        (start_time, is_kernel), now = read_start(pid, self._proc), self._clock()
        idle = self._idle.get(pid)
        if idle is not None and idle.start_time != start_time:
            idle = None
        if idle is not None and now < idle.due:
            self._idle[pid] = replace(idle, inode=inode)
            return None
        self._looked_at[pid] = now
        descriptors = {} if is_kernel else read_descriptors(pid, self._proc)
        if not is_guest(descriptors):
            shortest_s = LONGEST_WAIT_S if is_kernel else 1.0
            wait_s = shortest_s if idle is None else min(2 * idle.wait_s, LONGEST_WAIT_S)
            self._idle[pid] = _Idle(start_time, inode, now + wait_s, wait_s)
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
