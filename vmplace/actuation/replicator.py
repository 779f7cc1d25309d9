"""Carry out replications: each node gets its own copy of pages that several nodes only read.

The kernel keeps the copies coherent, drops them on a write and lets such pages wait; nothing is journaled,
for a copy is a cache, and dropping it restores what was.  KVM drops all by itself once the last user of the
guest's placement fd closes it, also when the agent is killed.  While it has other users, copies that would
not go are tried again until they do, or the VM is gone.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import PROC
from vmplace.actuation.replica_calls import Ask, ask_kvm
from vmplace.actuation.replicated_guest import GONE, CopyTools, ReplicatedGuest, Tried
from vmplace.actuation.result import Copies, ReplicaOutcome
from vmplace.errors import VmplaceError
from vmplace.policy.plan import Collapse, Replication
from vmplace.topology.guest import GuestTopology
from vmplace.topology.placement import (
    FEATURE_REPLICATE,
    FEATURE_REPLICATE_HUGE,
    Placement,
    open_placement,
    probe_features,
)

LOG = logging.getLogger(__name__)


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
        self._clock = clock
        self._proc = proc
        self._opened = opened
        self._tools = CopyTools(budget, clock, ask)
        self._guests: dict[tuple[int, int], ReplicatedGuest] = {}
        self._owed: set[tuple[int, int]] = set()

    def apply(
        self,
        replications: Iterable[Replication],
        guests: Mapping[str, GuestTopology],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> tuple[tuple[ReplicaOutcome, ...], tuple[str, ...]]:
        """Replicate what the budget allows; return the outcomes and what went wrong, in words."""
        self._forget_ended(guests.values())
        outcomes: list[ReplicaOutcome] = []
        wanted = joined(replications)
        failures = self._leave_nodes(wanted, guests, is_stopping)
        for replication in wanted:
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

    def _leave_nodes(
        self,
        wanted: Iterable[Replication],
        guests: Mapping[str, GuestTopology],
        is_stopping: Callable[[], bool],
    ) -> list[str]:
        """Drop copies on nodes that vCPUs left; return what went wrong, in words."""
        nids: dict[str, set[int]] = {}
        for one in wanted:
            nids.setdefault(one.guest, set()).update(one.nids)
        failures = []
        for name, guest in ((name, guests[name]) for name in nids if name in guests):
            mine = self._guests.get(guest.identity)
            try:
                if mine is not None and (reported := mine.leave(nids[name], is_stopping)):
                    LOG.info('guest=%s reason="%s"', name, reported)
            except Exception as err:
                failures.append(f"guest {name}: copies not dropped: {err}")
        return failures

    def copies(self, guests: Iterable[GuestTopology]) -> dict[str, Copies]:
        """Return by guest what its copies take now, and lost; absent: it never had any.

        ``guests``: all that run; others are forgotten.  What cannot be read now is as it was.
        """
        self._forget_ended(guests)
        return {mine.name: mine.copies() for mine in self._guests.values()}

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
                mine.drop_all()
                reported = (f"{mine.name}: replicas dropped",)
            except OSError as err:
                if err.errno not in GONE:
                    raise
            del self._guests[identity]
            mine.placement.close()
        self._owed.discard(identity)
        return reported

    def _forget_ended(self, guests: Iterable[GuestTopology]) -> None:
        alive = {guest.identity: guest.name for guest in guests}
        for identity in self._guests.keys() - alive.keys():
            self._guests.pop(identity).placement.close()
            self._owed.discard(identity)
        for identity, mine in self._guests.items():
            # libvirt may have reported its name since.
            self._guests[identity] = replace(mine, name=alive[identity])

    def _replicate(self, guest: GuestTopology, wanted: Replication, is_stopping: Callable[[], bool]) -> Tried:
        if guest.identity in self._owed:
            raise VmplaceError("its earlier copies are not dropped yet")
        return self._known(guest).replicate(wanted, is_stopping)

    def _known(self, guest: GuestTopology) -> ReplicatedGuest:
        mine = self._guests.get(guest.identity)
        if mine is None:
            placement = self._opened(guest, self._proc)
            mine = self._guests[guest.identity] = ReplicatedGuest(guest.name, placement, self._tools)
        return mine

    def drop(
        self, unwanted: Collapse, guest: GuestTopology, is_stopping: Callable[[], bool] = lambda: False
    ) -> int:
        """Drop the copies of these pages that were made lately, or all of the guest; return of how many.

        It ends early once ``is_stopping()``.  VmplaceError, or OSError when the VM is dead: its replicas are
        freed.
        """
        mine = self._guests.get(guest.identity)
        return 0 if mine is None else mine.drop(unwanted, is_stopping)


def joined(replications: Iterable[Replication]) -> list[Replication]:
    """Return one for each guest, nodes and limit: the pages of all ranges have their turn together."""
    alike: dict[tuple[str, tuple[int, ...], int | None], list[Replication]] = {}
    for one in replications:
        alike.setdefault((one.guest, one.nids, one.limit_bytes), []).append(one)
    return [
        replace(
            some[0],
            hva=np.concatenate([one.hva for one in some]),
            npages=np.concatenate([one.npages for one in some]),
            from_pages=sum((Counter(one.from_pages) for one in some), Counter()),
        )
        for some in alike.values()
    ]
