"""Set the CPUs of one vCPU thread: through libvirt where it knows the guest, else by sched_setaffinity(2)."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from vmplace.actuation.identity import PROC, read_start_time
from vmplace.errors import GuestGoneError, VmplaceError

_AFFECT_LIVE = 1
"""VIR_DOMAIN_AFFECT_LIVE."""


class LibvirtDomain(Protocol):
    """The part of libvirt.virDomain that pinning needs."""

    def pinVcpuFlags(self, vcpu: int, cpumap: tuple[bool, ...], flags: int) -> int:  # noqa: N802
        """Pin one vCPU."""


class LibvirtConnection(Protocol):
    """The part of libvirt.virConnect that pinning needs."""

    def lookupByName(self, name: str) -> LibvirtDomain:  # noqa: N802
        """Find a domain."""


def read_cpus(tid: int) -> set[int]:
    """Return the CPUs that thread ``tid`` may run on."""
    try:
        return os.sched_getaffinity(tid)
    except ProcessLookupError as err:
        raise GuestGoneError(f"thread {tid} ended") from err


def set_cpus(tid: int, cpus: Iterable[int]) -> None:
    """Let thread ``tid`` run on ``cpus`` only."""
    try:
        os.sched_setaffinity(tid, cpus)
    except ProcessLookupError as err:
        raise GuestGoneError(f"thread {tid} ended") from err
    except OSError as err:
        raise VmplaceError(
            f"thread {tid} cannot run on CPUs {sorted(cpus)}: {err.strerror}",
            hint="its cpuset may exclude them, or they are offline; EPERM needs CAP_SYS_NICE",
        ) from err


def set_cpus_by_libvirt(connection: LibvirtConnection, guest: str, vcpu_id: int, cpus: Iterable[int]) -> None:
    """Pin by libvirt, which also keeps its own records and the vCPU's cgroup right."""
    wanted = set(cpus)
    cpumap = tuple(cpu in wanted for cpu in range(max(wanted, default=-1) + 1))
    try:
        connection.lookupByName(guest).pinVcpuFlags(vcpu_id, cpumap, _AFFECT_LIVE)
    except Exception as err:  # libvirtError, which must not be imported where libvirt is absent
        raise VmplaceError(
            f"libvirt would not pin vCPU {vcpu_id} of {guest}: {err}",
            hint=f"`virsh vcpupin {guest}` shows its CPUs, and libvirt's log the reason",
        ) from err


class ThreadCpus(Protocol):
    """Where threads may run, and where that is set: the kernel, or a simulated host."""

    def read_cpus(self, tid: int) -> set[int]:
        """Return the CPUs that thread ``tid`` may run on; raises GuestGoneError."""

    def set_cpus(self, tid: int, cpus: Iterable[int]) -> None:
        """Let thread ``tid`` run on ``cpus`` only; raises GuestGoneError, VmplaceError."""


class KernelCpus:
    """The kernel of this machine."""

    def read_cpus(self, tid: int) -> set[int]:
        """Return the CPUs that thread ``tid`` may run on."""
        return read_cpus(tid)

    def set_cpus(self, tid: int, cpus: Iterable[int]) -> None:
        """Let thread ``tid`` run on ``cpus`` only."""
        set_cpus(tid, cpus)


def read_thread_start(pid: int, tid: int, proc: Path = PROC) -> int:
    """Return when a vCPU thread started; GuestGoneError when it is gone."""
    start = read_start_time(pid, proc, tid=tid)
    if start is None:
        raise GuestGoneError(f"thread {tid} ended")
    return start
