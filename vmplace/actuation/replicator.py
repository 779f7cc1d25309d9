"""Carry out replications: each node gets its own copy of pages that several nodes only read.

The kernel keeps the copies coherent, drops them on a write and lets such pages wait; nothing is journaled,
for a copy is a cache, and dropping it restores what was.  KVM drops all by itself once the last user of the
guest's placement fd closes it, also when the agent is killed.  While it has other users, copies that would
not go are tried again until they do, or the VM is gone.
"""

import contextlib
import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import PROC
from vmplace.actuation.replica_frames import (
    BLOCK,
    Gfns,
    ReplicatedFrames,
    affordable,
    blocks_of,
    runs_of,
    wanted_gfns,
)
from vmplace.actuation.replica_patience import LOST, Patience
from vmplace.actuation.result import Copies, ReplicaOutcome
from vmplace.errors import VmplaceError
from vmplace.policy.plan import Collapse, Replication
from vmplace.topology.guest import PAGE_BYTES, GuestTopology
from vmplace.topology.placement import (
    FEATURE_REPLICATE,
    FEATURE_REPLICATE_HUGE,
    Placement,
    open_placement,
    probe_features,
)

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
DROPPED = ("collapsed_pages", "released_pages")
"""KVM's statistics of frames whose copies it dropped."""
SHORT_LIVED = "copies short-lived"
"""Why pages were not tried: copies of this guest's pages did not last (replica_patience.py)."""
COPIES = "replica_copies"
"""KVM's statistic of pages that are copies now."""

BUSY = STATUS.index("busy")
PASSING = frozenset({"busy", "not present", "backing off", "written", "interrupted"})
"""Reasons that another page, or the next window, does not have."""
GONE = frozenset({errno.EIO, errno.ESRCH})
"""The VM is dead, or its process: its replicas are freed."""
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


def can_replicate(*, huge: bool = False) -> bool:
    """Tell whether this host's KVM replicates small pages, or huge ones."""
    try:
        return bool(probe_features() & (FEATURE_REPLICATE_HUGE if huge else FEATURE_REPLICATE))
    except VmplaceError:
        return False


@dataclass(frozen=True)
class Dropped:
    """Copies that were to go: ``reported``, in words, where they went, ``left`` where they are there yet."""

    reported: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Replicator:
    """Replicates pages of guests and drops the copies again; ``budget`` counts the bytes copied."""

    def __init__(
        self,
        budget: Budget,
        clock: Callable[[], int],
        proc: Path = PROC,
        opened: Callable[[GuestTopology, Path], Placement] = open_placement,
        ask: Ask = ask_kvm,
    ) -> None:
        self._budget = budget
        self._clock = clock
        self._proc = proc
        self._opened = opened
        self._ask = ask
        self._guests: dict[tuple[int, int], _Guest] = {}
        self._owed: set[tuple[int, int]] = set()

    def apply(
        self,
        replications: Iterable[Replication],
        guests: Mapping[str, GuestTopology],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> tuple[tuple[ReplicaOutcome, ...], tuple[str, ...]]:
        """Replicate what the budget allows; return the outcomes and what went wrong, in words."""
        self._forget_ended(guests)
        outcomes: list[ReplicaOutcome] = []
        failures: list[str] = []
        for replication in replications:
            guest = guests.get(replication.guest)
            if guest is None or is_stopping():
                continue
            try:
                outcomes.append(self._replicate(guest, replication))
            except Exception as err:
                failures.append(f"guest {replication.guest}: not replicated: {err}")
        return tuple(outcomes), tuple(failures)

    def copies(self) -> dict[str, Copies]:
        """Return by guest what its copies take now, and lost; absent: it never had any."""
        reported = {}
        for mine in self._guests.values():
            # EIO: the VM is dead, and its replicas are freed.  Whatever it is, others' are counted.
            with contextlib.suppress(Exception):
                counted = mine.placement.statistics()
                lost = counted.get(LOST, 0)
                waits = mine.patience.waits(self._clock())
                reported[mine.name] = Copies(counted[COPIES] * PAGE_BYTES, lost * PAGE_BYTES, waits)
        return reported

    def collapse(self) -> Dropped:
        """Drop all copies of all guests."""
        return self._all_let_go(self._guests)

    def release(self, guest: GuestTopology) -> Dropped:
        """Drop all copies of one guest, by whatever name it went."""
        return self._all_let_go([guest.identity])

    def retry(self) -> Dropped:
        """Drop the copies that were to go before and did not."""
        return self._all_let_go(self._owed)

    def close(self) -> Dropped:
        """Drop all copies and close all placement fds, with which KVM drops what is left."""
        dropped = self.collapse()
        for mine in self._guests.values():
            with contextlib.suppress(OSError):
                mine.placement.close()
        self._guests.clear()
        return dropped

    def _all_let_go(self, identities: Iterable[tuple[int, int]]) -> Dropped:
        reported: list[str] = []
        left: list[str] = []
        for identity in tuple(identities):
            mine = self._guests.get(identity)
            try:
                reported += self._let_go(identity)
            except Exception as err:
                self._owed.add(identity)
                left.append(f"{mine.name if mine else identity}: its copies are not dropped yet: {err}")
        return Dropped(tuple(reported), tuple(left))

    def _let_go(self, identity: tuple[int, int]) -> tuple[str, ...]:
        """Drop a guest's copies and forget it; return what was done, in words; raises if they are there."""
        mine = self._guests.get(identity)
        reported: tuple[str, ...] = ()
        if mine is not None:
            try:
                _collapse(mine.placement, self._asker(mine))
                reported = (f"{mine.name}: replicas dropped",)
            except OSError as err:
                if err.errno not in GONE:
                    raise
            del self._guests[identity]
            mine.placement.close()
        self._owed.discard(identity)
        return reported

    def _forget_ended(self, guests: Mapping[str, GuestTopology]) -> None:
        alive = {guest.identity for guest in guests.values()}
        for identity in self._guests.keys() - alive:
            self._guests.pop(identity).placement.close()
            self._owed.discard(identity)
        for guest in guests.values():
            # libvirt may have reported its name since.
            if mine := self._guests.get(guest.identity):
                self._guests[guest.identity] = replace(mine, name=guest.name)

    def _replicate(self, guest: GuestTopology, wanted: Replication) -> ReplicaOutcome:
        if guest.identity in self._owed:
            raise VmplaceError("its earlier copies are not dropped yet")
        mine = self._known(guest)
        info = mine.placement.info()
        nodes = sum(1 << nid for nid in wanted.nids) & info.root_nodes
        if nodes.bit_count() < 2:
            mine.patience.note_refusal(self._clock())
            raise VmplaceError("it has no node roots")
        statistics, now_ns = mine.placement.statistics(), self._clock()
        mine.held.note_drops(sum(statistics[name] for name in DROPPED))
        asked = mine.held.missing(wanted_gfns(wanted, info.slots))
        if not mine.patience.is_over(statistics, now_ns):
            return ReplicaOutcome(guest.name, refused={SHORT_LIVED: len(asked)})
        room = None if wanted.limit_bytes is None else wanted.limit_bytes - statistics[COPIES] * PAGE_BYTES
        return self._try(mine, nodes, asked, room)

    def _known(self, guest: GuestTopology) -> "_Guest":
        mine = self._guests.get(guest.identity)
        if mine is None:
            mine = self._guests[guest.identity] = _Guest(guest.name, self._opened(guest, self._proc))
        return mine

    def _try(self, mine: "_Guest", nodes: int, asked: Gfns, room_bytes: int | None) -> ReplicaOutcome:
        """Ask KVM for as many copies as the budget allows, and the guest's own room, if it has a limit."""
        cost = PAGE_BYTES * (nodes.bit_count() - 1)
        may_bytes = self._budget.available_bytes(self._clock())
        if room_bytes is not None:
            may_bytes = max(0, min(may_bytes, room_bytes))
        tried = affordable(asked, may_bytes // cost)
        done, refused = replicated(mine.placement.fd, nodes, tried, self._asker(mine))
        new = mine.held.note(tried, done)
        if not mine.held.any() and refused.keys() - PASSING:
            mine.patience.note_refusal(self._clock())
        self._budget.take(new * cost, self._clock())
        return ReplicaOutcome(mine.name, new, len(asked) - len(tried), refused)

    def _asker(self, mine: "_Guest") -> Ask:
        """Return what asks KVM on the guest's behalf, and gives up with HeldError."""

        def ask(_fd: int, *rest: Any) -> None:
            mine.placement.call(lambda own: self._ask(own, *rest))

        return ask

    def drop(self, unwanted: Collapse, guest: GuestTopology) -> int:
        """Drop the copies of these pages that were made lately; return of how many.

        VmplaceError, or OSError when the VM is dead: its replicas are freed.
        """
        mine = self._guests.get(guest.identity)
        if mine is None or not mine.held.any():
            return 0
        gfns = mine.held.take(wanted_gfns(unwanted, mine.placement.info().slots))
        try:
            _collapse_runs(mine.placement.fd, *runs_of(gfns), self._asker(mine))
        except Exception:
            # Some may be there still: the next plan may ask for them again.
            mine.held.note(gfns, gfns)
            raise
        return len(gfns)


@dataclass(frozen=True)
class _Guest:
    """What is remembered of one guest."""

    name: str
    placement: Placement
    held: ReplicatedFrames = field(default_factory=ReplicatedFrames)
    patience: Patience = field(default_factory=Patience)


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


def _collapse(placement: Placement, ask: Ask) -> None:
    slots = [slot for slot in placement.info().slots if not slot.as_id]
    gfns = np.array([slot.base_gfn for slot in slots], np.uint64)
    npages = np.array([slot.npages for slot in slots], np.int32)
    _collapse_runs(placement.fd, gfns, npages, ask)


def _collapse_runs(fd: int, gfns: Gfns, npages: npt.NDArray[np.int32], ask: Ask) -> None:
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
