"""Who places a managed guest: vmplace or the kernel's automatic NUMA balancing?

Both at once undo each other: the kernel moves pages towards whichever vCPU thread faulted last.  A stock
kernel (6.12 read) has no switch per process:

* ``task_tick_numa`` and ``task_numa_work`` (kernel/sched/fair.c) ask only the static key
  ``sched_numa_balancing``, set by sysctl kernel.numa_balancing (kernel/sched/core.c:
  ``sysctl_numa_balancing``); include/uapi/linux/prctl.h has nothing about NUMA;
* a VMA is passed over if ``vma_policy_mof`` (mm/mempolicy.c) finds a mempolicy without MPOL_F_MOF, as a
  strict <numatune> gives it, but no system call sets the mempolicy of another process.

So while vmplace places at least one guest, it takes the host-wide sysctl: journals its value, clears
NUMA_BALANCING_NORMAL in it, and gives it back with the last guest, on a clean stop, and on undo.  The other
bit, memory tiering, stays: by itself it marks no page of the fast nodes (change_prot_numa, mm/mprotect.c),
and moves pages up from slow ones, which nobody else does.  Pages that were marked before can still be
moved by the kernel once, by their next hinting fault (mm/memory.c: do_numa_page does not ask the key).
Whoever sets the sysctl meanwhile is respected: vmplace says so and lets go.

A kernel with kvm-patches/ exempts the process of a VM that has node roots (MMF_NO_NUMA_BALANCING): there the
sysctl stays as it is, and other processes are balanced as before.
"""

import contextlib
from enum import Enum
from pathlib import Path

from vmplace.actuation.identity import PROC
from vmplace.actuation.journal import Journal
from vmplace.actuation.journal_records import SysctlRecord
from vmplace.errors import OutsideError, VmplaceError
from vmplace.outside import SMALL_BYTES, read_text, whole
from vmplace.topology.procfs import NORMAL_BALANCING

NUMA_BALANCING = "kernel/numa_balancing"


class Ownership(Enum):
    """What the configuration says about the kernel's balancing."""

    TAKE = "take"
    LEAVE = "leave"


class NumaBalancing:
    """Takes and gives back kernel.numa_balancing; a value left by a killed agent is taken over."""

    def __init__(self, journal: Journal, ownership: Ownership = Ownership.TAKE, *, proc: Path = PROC) -> None:
        self._journal = journal
        self._ownership = ownership
        self._proc = proc
        self._taken = journal.without_pages().sysctls.get(NUMA_BALANCING)
        self._respected = False
        with contextlib.suppress(VmplaceError):
            self._drop_unwritten()

    @property
    def is_taken(self) -> bool:
        """Tell whether the sysctl is ours now."""
        return self._taken is not None

    def update(self, managed_guests: int) -> str | None:
        """Take with the first of the guests that vmplace places, give back with the last.

        Returns what changed in one sentence, or None.
        """
        if not managed_guests:
            self._respected = False
            return self.give_back()
        if self._taken is not None:
            return self._noticed()
        if self._ownership is Ownership.LEAVE or self._respected:
            return None
        return self._take()

    def give_back(self) -> str | None:
        """Set the sysctl to what it was, unless somebody else changed it; say what was done."""
        taken, self._taken = self._taken, None
        return restore_sysctl(self._journal, taken, self._proc) if taken else None

    def _take(self) -> str | None:
        before = read_sysctl(NUMA_BALANCING, self._proc)
        if before is None or (after := _without_normal(before)) == before:
            return None
        noted = self._journal.record_sysctl(NUMA_BALANCING, before, after)
        write_sysctl(NUMA_BALANCING, after, self._proc)
        self._taken = noted
        return f"kernel.numa_balancing={before}->{after}: two placers would undo each other's moves"

    def _drop_unwritten(self) -> None:
        """Forget a value that an agent noted and, killed before it set it, never took: nobody else set it."""
        if self._taken is not None and read_sysctl(NUMA_BALANCING, self._proc) == self._taken.before:
            self._taken = None
            self._journal.record_sysctl_returned(NUMA_BALANCING)

    def _noticed(self) -> str | None:
        now = read_sysctl(NUMA_BALANCING, self._proc)
        if self._taken is None or now == self._taken.after:
            return None
        self._taken, self._respected = None, True
        self._journal.record_sysctl_returned(NUMA_BALANCING)
        return f"kernel.numa_balancing was set to {now} by somebody else; vmplace leaves it so"


def _without_normal(mode: str) -> str:
    """Return a value of kernel.numa_balancing without what moves pages between nodes of one kind."""
    return str(whole(mode, what="kernel.numa_balancing") & ~NORMAL_BALANCING)


def read_sysctl(name: str, proc: Path = PROC) -> str | None:
    """Return the value of /proc/sys/``name``, None where the kernel does not have it; raises VmplaceError."""
    try:
        return read_text(proc / "sys" / name, SMALL_BYTES).strip()
    except FileNotFoundError:
        return None
    except (OSError, OutsideError) as err:
        raise VmplaceError(f"cannot read {name.replace('/', '.')}: {err}", hint="look at /proc/sys") from err


def write_sysctl(name: str, value: str, proc: Path = PROC) -> None:
    """Set /proc/sys/``name``."""
    try:
        (proc / "sys" / name).write_text(value)
    except OSError as err:
        raise VmplaceError(
            f"cannot set {name.replace('/', '.')} to {value}: {err.strerror}",
            hint='run the agent as root, or set numa_balancing = "leave" in the configuration',
        ) from err


def restore_sysctl(journal: Journal, taken: SysctlRecord, proc: Path = PROC) -> str:
    """Give one sysctl back and note it; say what was done."""
    dotted = taken.name.replace("/", ".")
    now = read_sysctl(taken.name, proc)
    if now == taken.after:
        write_sysctl(taken.name, taken.before, proc)
    journal.record_sysctl_returned(taken.name)
    if now != taken.after:
        return f"{dotted} was set to {now} by somebody else; vmplace leaves it so"
    return f"{dotted}={taken.after}->{taken.before}: given back"
