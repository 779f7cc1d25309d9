"""Ask KVM to give guest frames copies on several nodes, or to drop these: range by range, in small calls."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.actuation.replica_frames import BLOCK, Gfns, blocks_of
from vmplace.errors import VmplaceError
from vmplace.topology.placement import Placement

STATUS = (
    "ok",
    "no memslot",
    "not present",
    "not anonymous",
    "locked",
    "huge",
    "busy",
    "dirty logging",
    "no memory",
    "backing off",
    "poisoned",
    "shared",
    "written",
    "node refused",
)
"""KVM_PLACEMENT_* of kvm-patches/kvm_placement.h, in words, by number."""
MOST_RANGES = 1024
MOST_PAGES = 8 * BLOCK
"""Per call, so that an order to stop need not wait for long."""
BUSY = STATUS.index("busy")
MOST_STILL = 3
"""Calls in a row that drop nothing, until it is left for later."""
Statuses = npt.NDArray[np.int32]
Ask = Callable[[int, int, Gfns, Statuses, Statuses, Statuses], None]
"""``native.placement_replicate``, or what stands for it on a simulated host."""


def ask_kvm(  # noqa: PLR0913 - the ioctl's arguments
    fd: int, nodes: int, gfns: Gfns, npages: Statuses, done: Statuses, status: Statuses
) -> None:
    """Ask the KVM under vmplace: fills ``done``, in pages, and ``status``, by range."""
    native.placement_replicate(fd, nodes, gfns, npages, done, status)


def replicated(fd: int, nodes: int, gfns: Gfns, ask: Ask = ask_kvm) -> tuple[Gfns, dict[str, int]]:
    """Replicate the frames; return those that have copies now, and how many were refused for what."""
    done, status = _tried(fd, nodes, gfns, ask)
    # A page that a vCPU is faulting in is busy for that moment, and those that vCPUs use most often are.
    # Those in another CPU's LRU batch remain busy, some dozens of small pages: the next plan asks again.
    busy = np.flatnonzero(status == BUSY)
    done[busy], status[busy] = _tried(fd, nodes, gfns[busy], ask)
    codes, counts = np.unique(status[done == 0], return_counts=True)
    refused = {_word(code): count for code, count in zip(codes.tolist(), counts.tolist(), strict=True)}
    return gfns[done != 0], refused


def _tried(fd: int, nodes: int, gfns: Gfns, ask: Ask) -> tuple[Statuses, Statuses]:
    """Ask for copies of each frame; return 1 for those that have them, and KVM's status."""
    first, npages = blocks_of(gfns)
    count, why = _called(fd, nodes, first, npages, ask)
    done = np.repeat((count == npages).astype(np.int32), npages)
    status = np.repeat(why, npages)
    # Of a block of small pages KVM tells how many have copies, not which.
    again = np.flatnonzero(np.repeat((count > 0) & (count < npages), npages))
    done[again], status[again] = _called(fd, nodes, gfns[again], np.ones(len(again), np.int32), ask)
    return done, status


def _called(fd: int, nodes: int, gfns: Gfns, npages: Statuses, ask: Ask) -> tuple[Statuses, Statuses]:
    """Ask for copies of ranges; return how many frames of each have them, and KVM's status."""
    done, status = np.zeros(len(gfns), np.int32), np.full(len(gfns), -1, np.int32)
    for part in calls_of(npages):
        ask(fd, nodes, gfns[part], npages[part], done[part], status[part])
    return done, status


def calls_of(npages: Statuses) -> list[slice]:
    """Return which ranges to ask for by which call: up to MOST_RANGES, of about MOST_PAGES together."""
    if not len(npages):
        return []
    pages, ranges = (np.cumsum(npages) - 1) // MOST_PAGES, np.arange(len(npages)) // MOST_RANGES
    new = np.flatnonzero((np.diff(pages) > 0) | (np.diff(ranges) > 0)) + 1
    return [slice(a, b) for a, b in pairwise([0, *new.tolist(), len(npages)])]


def _word(code: int) -> str:
    return STATUS[code] if 0 <= code < len(STATUS) else "interrupted"


def collapse_all(placement: Placement, ask: Ask) -> None:
    """Drop all copies of a guest."""
    slots = [slot for slot in placement.info().slots if not slot.as_id]
    gfns = np.array([slot.base_gfn for slot in slots], np.uint64)
    npages = np.array([slot.npages for slot in slots], np.int32)
    collapse_runs(placement.fd, gfns, npages, ask)


def collapse_runs(fd: int, gfns: Gfns, npages: npt.NDArray[np.int32], ask: Ask) -> None:
    """Drop the copies of runs of frames."""
    for first in range(0, len(gfns), MOST_RANGES):
        part = slice(first, first + MOST_RANGES)
        _collapse_ranges(fd, gfns[part], npages[part], ask)


def _collapse_ranges(fd: int, gfns: Gfns, npages: npt.NDArray[np.int32], ask: Ask) -> None:
    """Drop the copies of as many ranges as one call takes; VmplaceError if it would not end."""
    still = 0
    while len(gfns) and still < MOST_STILL:
        done, status = np.zeros_like(npages), np.zeros_like(npages)
        ask(fd, 0, gfns, npages, done, status)
        # A signal cuts a call short, without an error: the next one goes on from there.
        still = 0 if done.any() else still + 1
        rest = np.flatnonzero(done < npages)
        gfns, npages = gfns[rest] + done[rest].astype(np.uint64), npages[rest] - done[rest]
    if len(gfns):
        raise VmplaceError(
            f"KVM was interrupted {MOST_STILL} times, copies of {npages.sum()} pages may be left",
            hint="`vmplace undo` drops them",
        )
