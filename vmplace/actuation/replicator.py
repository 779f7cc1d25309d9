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
from pathlib import Path
from typing import Any

from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import PROC
from vmplace.actuation.replica_calls import Ask, Attempt, ask_kvm, collapse_all, collapse_runs
from vmplace.actuation.replica_frames import NONE, Gfns, ReplicatedFrames, runs_of, wanted_gfns
from vmplace.actuation.replica_patience import LOST, Patience
from vmplace.actuation.replica_payment import COPIES, Payment
from vmplace.actuation.replica_turns import CopyWindow, Turn
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

DROPPED = ("collapsed_pages", "released_pages")
"""KVM's statistics of frames whose copies it dropped."""
SHORT_LIVED = "copies short-lived"
"""Why pages were not tried: copies of this guest's pages did not last (replica_patience.py)."""
PASSING = frozenset({"busy", "not present", "backing off", "written", "interrupted"})
"""Reasons that another page, or the next window, does not have."""
Tried = tuple[ReplicaOutcome, Exception | None]
"""What became of the pages of a guest, and what ended it early."""
GONE = frozenset({errno.EIO, errno.ESRCH})
"""The VM is dead, or its process: its replicas are freed."""


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
                outcome, failure = self._replicate(guest, replication, is_stopping)
            except Exception as err:
                failures.append(f"guest {replication.guest}: not replicated: {err}")
                continue
            outcomes.append(outcome)
            if failure is not None:
                failures.append(f"guest {replication.guest}: not all was replicated: {failure}")
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
                collapse_all(mine.placement, self._asker(mine))
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

    def _replicate(self, guest: GuestTopology, wanted: Replication, is_stopping: Callable[[], bool]) -> Tried:
        if guest.identity in self._owed:
            raise VmplaceError("its earlier copies are not dropped yet")
        mine = self._known(guest)
        info = mine.placement.info()
        nodes = sum(1 << nid for nid in wanted.nids) & info.root_nodes
        if nodes.bit_count() < 2:
            mine.patience.note_refusal(self._clock())
            raise VmplaceError("it has no node roots")
        statistics, now_ns = mine.placement.statistics(), self._clock()
        each_bytes = _each_bytes(nodes)
        # A call that was given up may have gone on.
        self._budget.charge(mine.payment.due_bytes(statistics, each_bytes), now_ns)
        mine.held.note_drops(sum(statistics[name] for name in DROPPED))
        asked = mine.held.missing(wanted_gfns(wanted, info.slots))
        if not mine.patience.is_over(statistics, now_ns):
            return ReplicaOutcome(guest.name, refused={SHORT_LIVED: len(asked)}), None
        return self._try(mine, nodes, asked, wanted.limit_bytes, is_stopping)

    def _known(self, guest: GuestTopology) -> "_Guest":
        mine = self._guests.get(guest.identity)
        if mine is None:
            mine = self._guests[guest.identity] = _Guest(guest.name, self._opened(guest, self._proc))
        return mine

    def _try(
        self,
        mine: "_Guest",
        nodes: int,
        asked: Gfns,
        limit_bytes: int | None,
        is_stopping: Callable[[], bool],
    ) -> Tried:
        """Ask KVM for as many copies as the budget allows, and the guest's own limit, if it has one."""
        each_bytes, failure = _each_bytes(nodes), None
        most = self._most(mine, each_bytes, limit_bytes)
        window = CopyWindow(asked, mine.turn, most)
        while len(part := window.part(most)):
            attempt = Attempt(mine.placement.fd, nodes, part, self._asker(mine))
            failure = _failure_of(attempt.run)
            window.note(attempt)
            unpaid = self._pay(mine, each_bytes, attempt)
            failure = failure or unpaid
            if failure is not None or is_stopping():
                break
            most = self._most(mine, each_bytes, limit_bytes)
        new, refused = window.end(mine.held), window.refused()
        # Whether the rest is refused, too, is not known before its turn.
        is_lasting = bool(refused.keys() - PASSING) and not mine.held.any()
        if is_lasting and mine.turn.is_whole(len(asked)):
            mine.patience.note_refusal(self._clock())
        return ReplicaOutcome(mine.name, new, window.left(), refused), failure

    def _most(self, mine: "_Guest", each_bytes: int, limit_bytes: int | None) -> int:
        """Return how many pages may get copies now."""
        may_bytes = self._budget.available_bytes(self._clock())
        if limit_bytes is not None:
            may_bytes = max(0, min(may_bytes, limit_bytes - mine.payment.copies * PAGE_BYTES))
        return may_bytes // each_bytes

    def _pay(self, mine: "_Guest", each_bytes: int, attempt: Attempt) -> Exception | None:
        """Take from the budget what KVM copied; where it cannot be asked, all that it may have copied.

        Returns why it could not be asked.
        """
        failure = None
        try:
            size_bytes = mine.payment.due_bytes(mine.placement.statistics(), each_bytes)
        except Exception as err:
            failure = err
            most = len(attempt.done) + len(attempt.unknown)
            size_bytes = mine.payment.pay_ahead(most * each_bytes)
        self._budget.charge(size_bytes, self._clock())
        return failure

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
            collapse_runs(mine.placement.fd, *runs_of(gfns), self._asker(mine))
        except Exception:
            # Some may be there still: the next plan may ask for them again.
            mine.held.note(gfns, NONE, unsure=gfns)
            raise
        return len(gfns)


def _each_bytes(nodes: int) -> int:
    """Return what all copies of a page take: one of the nodes has the page itself."""
    return PAGE_BYTES * (nodes.bit_count() - 1)


def _failure_of(step: Callable[[], None]) -> Exception | None:
    """Do the step; return what it raised."""
    try:
        step()
    except Exception as err:
        return err
    return None


@dataclass(frozen=True)
class _Guest:
    """What is remembered of one guest."""

    name: str
    placement: Placement
    held: ReplicatedFrames = field(default_factory=ReplicatedFrames)
    patience: Patience = field(default_factory=Patience)
    payment: Payment = field(default_factory=Payment)
    turn: Turn = field(default_factory=Turn)
