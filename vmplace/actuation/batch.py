"""What became of each page of one move_pages(2) call?

Read from mm/migrate.c of 6.12 (do_pages_move, move_pages_and_store_status):
* a page that is on the wanted node gets the node as its status, whether it moved or was there before;
* the kernel queues pages until the wanted node changes or a page gets a status at once, then moves the
  queue.  If a page of the queue cannot move, **no** page of it gets a status, the rest of the call is not
  tried, and the call returns a positive number.  So a batch has one wanted node, and a queue without status
  is asked for;
* the second page of a huge folio in one queue is -EBUSY, because the first took the folio off the LRU;
* -EACCES per page: mapped by several processes (fork, KSM), needs MPOL_MF_MOVE_ALL.  It is not used: the
  other processes have not been asked.  -EACCES of the whole call: the node is outside the guest's
  cpuset.mems;
* -ENOMEM of the whole call: the node is full (__GFP_THISNODE); pages before that have moved;
* a process that ended is -ESRCH, or -EINVAL while it is a zombie.
"""

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vmplace import apart, held
from vmplace.cpu_time import thread_cpu_ns, thread_delay_ns
from vmplace.errors import GuestGoneError, VmplaceError
from vmplace.held import HeldError

Hvas = npt.NDArray[np.uint64]
Status = npt.NDArray[np.int32]

UNTRIED = np.int32(np.iinfo(np.int32).min)
"""Status of a page that the kernel did not get to; try it again, it is not the page's fault."""

BUSY = np.int32(-errno.EBUSY)

IN_FLIGHT_S = (0.001, 0.01)
"""After which pauses pages are asked for again that seem to be gone: to copy 2 MiB takes less than 1 ms."""


class MoveKernel(Protocol):
    """The part of ``vmplace.native`` that moving needs; the real one is the module itself."""

    def move_pages(self, pid: int, hvas: Hvas, nids: Status, status: Status) -> int:
        """Move, fill ``status``, return the duration in ns; OSError for a failure of the whole call."""

    def page_nids(self, pid: int, hvas: Hvas, status: Status) -> None:
        """Fill ``status`` with each page's node or -errno."""


class NativeKernel:
    """The kernel under vmplace, asked by a process of its own (apart.py); raises HeldError, too."""

    def move_pages(self, pid: int, hvas: Hvas, nids: Status, status: Status) -> int:
        """See ``native.move_pages``."""
        return apart.move_pages(pid, hvas, nids, status)

    def page_nids(self, pid: int, hvas: Hvas, status: Status) -> None:
        """See ``native.page_nids``."""
        apart.page_nids(pid, hvas, status)


@dataclass(frozen=True)
class BatchOutcome:
    """``status`` per page: the wanted node (it is there now), -errno, or UNTRIED.

    ``duration_ns`` is the call's by the clock, ``cpu_ns`` the CPU time of its thread,
    and ``delay_ns`` how long it waited for a CPU.
    ``error`` is the errno of the whole call, which concerns every page to that node; 0 = none.
    """

    status: Status
    duration_ns: int
    cpu_ns: int
    error: int = 0
    delay_ns: int = 0


class CallWaits:
    """How long calls for one guest waited, together; a single one is given up by held.py alone.

    Not for a CPU: on a busy host all do, and no guest is to blame.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._ns = pid, 0
        self._most_s = held.calls_may_wait_s(pid)

    def add(self, outcome: BatchOutcome) -> None:
        """Count a call; raises HeldError once they waited for too long."""
        self._ns += max(outcome.duration_ns - outcome.cpu_ns - outcome.delay_ns, 0)
        if self._ns > self._most_s * 1e9:
            held.note_waits(self._pid, self._ns / 1e9)
            raise HeldError


def read_nids(kernel: MoveKernel, pid: int, hva: Hvas) -> Status:
    """Return each page's node or -errno; GuestGoneError when the process ended."""
    status = np.full(len(hva), UNTRIED, np.int32)
    if len(hva):
        try:
            kernel.page_nids(pid, hva, status)
        except OSError as err:
            raise _whole_call_error(pid, err) from err
    return status


def read_settled_nids(
    kernel: MoveKernel, pid: int, hva: Hvas, sleep: Callable[[float], None] = time.sleep
) -> Status:
    """Return the same, but of pages that the kernel migrates just now where they are after that.

    Such a page is -ENOENT, like one that is not mapped any more (do_pages_stat_array, mm/migrate.c).
    """
    found = read_nids(kernel, pid, hva)
    for pause_s in IN_FLIGHT_S:
        absent = np.flatnonzero(found == -errno.ENOENT)
        if not len(absent):
            break
        sleep(pause_s)
        found[absent] = read_nids(kernel, pid, hva[absent])
    return found


def move_batch(kernel: MoveKernel, pid: int, hva: Hvas, nid: int) -> BatchOutcome:
    """Move pages of ``pid`` to ``nid`` by one call and find out what became of each."""
    status = np.full(len(hva), UNTRIED, np.int32)
    error = 0
    started, started_cpu, delayed = time.monotonic_ns(), thread_cpu_ns(), thread_delay_ns()
    try:
        duration = kernel.move_pages(pid, hva, np.full(len(hva), nid, np.int32), status)
    except OSError as err:
        duration = time.monotonic_ns() - started
        if err.errno not in (errno.ENOMEM, errno.ENODEV, errno.EACCES):
            raise _whole_call_error(pid, err) from err
        error = err.errno
    cpu, delay = thread_cpu_ns() - started_cpu, thread_delay_ns() - delayed
    # A call that failed whole says nothing against its pages: they count as untried.
    _ask_for_stuck(kernel, pid, hva, nid, status, UNTRIED if error else BUSY)
    return BatchOutcome(status, duration, cpu, error, delay)


def stuck_queue(status: Status) -> slice:
    """Return the queue that was tried and got no status: up to the next page that has one."""
    unknown = status == UNTRIED
    first = int(np.argmax(unknown)) if unknown.any() else len(status)
    known_after = np.flatnonzero(~unknown[first:])
    return slice(first, first + int(known_after[0]) if len(known_after) else len(status))


def _ask_for_stuck(  # noqa: PLR0913 - the call's arguments and its answer
    kernel: MoveKernel, pid: int, hva: Hvas, nid: int, status: Status, verdict: np.int32
) -> None:
    """Fill in pages whose status is not known: on the node after all, gone, or ``verdict``."""
    stuck = np.zeros(len(status), bool)
    stuck[stuck_queue(status)] = True
    asked = np.flatnonzero(stuck | (status == BUSY))
    if len(asked):
        found = read_nids(kernel, pid, hva[asked])
        status[asked] = np.where((found == nid) | (found < 0), found, verdict)


def _whole_call_error(pid: int, err: OSError) -> VmplaceError:
    if err.errno in (errno.ESRCH, errno.EINVAL):
        return GuestGoneError(f"process {pid} ended")
    if err.errno == errno.EPERM:
        return VmplaceError(
            f"the kernel does not let vmplace move pages of process {pid}",
            hint="run the agent as root, or with CAP_SYS_PTRACE and CAP_SYS_NICE",
        )
    return VmplaceError(
        f"move_pages of process {pid} failed: {err.strerror}",
        hint="`journalctl -k` has the kernel's words on it",
    )
