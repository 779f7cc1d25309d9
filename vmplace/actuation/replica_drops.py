"""Have KVM drop copies of guest frames: in calls that do not take long, so that an order need not wait."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vmplace.actuation.frame_sets import FrameSet, Gfns
from vmplace.actuation.replica_calls import MOST_RANGES, Ask, Statuses
from vmplace.actuation.replica_frames import runs_of
from vmplace.errors import VmplaceError
from vmplace.topology.placement import Slot

MOST_STILL = 3
"""Calls in a row that drop nothing, until it is left for later."""
MOST_DROPPED = 1 << 16
"""Pages whose copies are dropped until somebody may have it end: what takes KVM some 0.1 s."""
Part = tuple[Gfns, Statuses]
"""Runs of frames: the first of each, and how many they are."""


@dataclass
class DropTurn:
    """With which part of a guest a drop of all its copies begins: the one behind those of the last drop."""

    begin: int = 0

    def in_turn(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Yield all parts from there on, those before it last; each that is asked for counts as done."""
        first = self.begin if self.begin < len(parts) else 0
        for at in (*range(first, len(parts)), *range(first)):
            self.begin = at + 1
            yield parts[at]


def parts_of(frames: FrameSet) -> Iterator[Part]:
    """Yield all frames in parts of up to MOST_DROPPED."""
    while frames:
        gfns = frames.in_turn(0, MOST_DROPPED)
        frames -= FrameSet.of(gfns)
        yield runs_of(gfns)


def parts_of_slots(slots: Iterable[Slot]) -> Iterator[Part]:
    """Yield all frames of a guest in such parts."""
    for slot in (slot for slot in slots if not slot.as_id):
        for at in range(0, slot.npages, MOST_DROPPED):
            npages = min(MOST_DROPPED, slot.npages - at)
            yield np.array([slot.base_gfn + at], np.uint64), np.array([npages], np.int32)


def collapse_runs(fd: int, gfns: Gfns, npages: Statuses, ask: Ask) -> None:
    """Drop the copies of runs of frames."""
    for first in range(0, len(gfns), MOST_RANGES):
        part = slice(first, first + MOST_RANGES)
        _collapse_ranges(fd, gfns[part], npages[part], ask)


def _collapse_ranges(fd: int, gfns: Gfns, npages: Statuses, ask: Ask) -> None:
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
