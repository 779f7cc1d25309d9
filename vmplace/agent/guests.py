"""Which guests does the agent know, and what does it remember of each?"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

from vmplace.agent.config import GuestRule, LoadedConfig
from vmplace.agent.notes import described, unexpected
from vmplace.agent.state import Decision
from vmplace.errors import GuestGoneError
from vmplace.model.memory_use import MemoryUse, memory_use
from vmplace.model.pages import GuestPages
from vmplace.policy.plan import GuestSettings, GuestView, Mode
from vmplace.policy.proximity import Climb
from vmplace.policy.trial import Trial
from vmplace.sampling.guest_pace import MemoryRate
from vmplace.sampling.served import ServedAccesses
from vmplace.topology.guest import GuestTopology

LOG = logging.getLogger(__name__)
DECISIONS_KEPT = 50
SERVED_KEPT = 16
"""Windows; a sampling source sees few accesses in one."""


@dataclass
class TrackedGuest:
    """What the agent remembers of one guest between windows; only the loop changes it."""

    topology: GuestTopology
    settings: GuestSettings = field(default_factory=GuestSettings)
    pages: GuestPages | None = None
    served: deque[ServedAccesses] = field(default_factory=lambda: deque(maxlen=SERVED_KEPT))
    moved_bytes: int = 0
    held: bool = False
    rate: MemoryRate | None = None
    trial: Trial = field(default_factory=Trial)
    climb: Climb = field(default_factory=Climb)
    problem: str | None = None
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=DECISIONS_KEPT))

    @property
    def name(self) -> str:
        """Return the guest's name."""
        return self.topology.name

    def note(self, err: Exception) -> None:
        """Keep what went wrong for this guest as its problem; log it if it is news."""
        told = described(err) or type(err).__name__
        if told != self.problem:
            LOG.warning('guest=%s reason="%s"', self.name, told, exc_info=unexpected(err))
        self.problem = told

    @property
    def view(self) -> GuestView:
        """Return what the policy may know."""
        fixed, use = self.settings.proximity, self.memory_use
        return GuestView(
            self.topology,
            self.pages,
            self.settings,
            proximity=self.climb.dwp if fixed is None else fixed,
            dram_per_us=use.dram_per_us if use else self.rate.dram_per_us if self.rate else None,
            cpus=self.rate.cpus if self.rate else None,
        )

    @property
    def memory_use(self) -> MemoryUse | None:
        """Return how the guest used memory in the last windows, None where no source tells."""
        return memory_use(reduce(add, self.served)) if self.served else None


class Roster:
    """The guests of the host by name, following their coming and going."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded
        self._guests: dict[str, TrackedGuest] = {}
        self._gone: list[GuestTopology] = []

    def __iter__(self) -> Iterator[TrackedGuest]:
        return iter(tuple(self._guests.values()))

    def get(self, name: str) -> TrackedGuest | None:
        """Return the guest called ``name``, or None."""
        return self._guests.get(name)

    def names(self) -> tuple[str, ...]:
        """Return all names."""
        return tuple(self._guests)

    def views(self) -> tuple[GuestView, ...]:
        """Return what the policy may know of each guest; one that cannot be told is left out, with a note."""
        views = []
        for guest in self:
            try:
                views.append(guest.view)
            except Exception as err:
                guest.note(err)
        return tuple(views)

    def update(self, found: Iterable[GuestTopology], host_nids: tuple[int, ...]) -> bool:
        """Make the roster that of ``found``; return whether a guest came or went."""
        known = {guest.topology.identity: guest for guest in self}
        before = set(known)
        after: dict[str, TrackedGuest] = {}
        for topology in found:
            guest = known.get(topology.identity) or TrackedGuest(topology)
            try:
                self._take_up(guest, topology, host_nids, is_new=topology.identity not in known)
            except Exception as err:
                guest.settings = GuestSettings(Mode.MANUAL)
                guest.note(err)
            after[guest.name] = guest
        for guest in self:
            if after.get(guest.name) is not guest:
                self.forget(guest, "not found")
        self._guests = after
        return {guest.topology.identity for guest in self} != before

    def forget(self, guest: TrackedGuest, reason: str) -> None:
        """Drop a guest that ended."""
        if self._guests.get(guest.name) is guest:
            del self._guests[guest.name]
            self._gone.append(guest.topology)
            LOG.info('guest=%s pid=%d state=known->gone reason="%s"', guest.name, guest.topology.pid, reason)

    @property
    def has_lost(self) -> bool:
        """Return whether a guest went since ``take_gone``."""
        return bool(self._gone)

    def take_gone(self) -> tuple[GuestTopology, ...]:
        """Return the guests that went since the last time."""
        gone, self._gone = tuple(self._gone), []
        return gone

    def tried(self, guest: TrackedGuest, step: Callable[[GuestTopology], None]) -> bool:
        """Run one step for one guest; its failure is noted on it and stops nobody else."""
        try:
            step(guest.topology)
        except GuestGoneError as err:
            self.forget(guest, str(err))
        except Exception as err:
            guest.note(err)
        else:
            guest.problem = None
            return True
        return False

    def _take_up(
        self, guest: TrackedGuest, topology: GuestTopology, host_nids: tuple[int, ...], *, is_new: bool
    ) -> None:
        if not is_new:
            self._renew(guest, topology, host_nids)
            return
        self._apply_rule(guest, host_nids)
        LOG.info(
            'guest=%s pid=%d state=unknown->known mode=%s reason="found by %s"',
            topology.name, topology.pid, guest.settings.mode.value, topology.origin,
        )  # fmt: skip

    def _renew(self, guest: TrackedGuest, topology: GuestTopology, host_nids: tuple[int, ...]) -> None:
        before, guest.topology = guest.topology, merged(guest.topology, topology)
        if (guest.name, guest.topology.origin) != (before.name, before.origin):
            LOG.info('guest=%s->%s reason="%s tells its name"', before.name, guest.name, topology.origin)
            self._apply_rule(guest, host_nids)

    def _apply_rule(self, guest: TrackedGuest, host_nids: tuple[int, ...]) -> None:
        rule = self._loaded.rule(guest.name, guest.topology.origin)
        wrong = str(rule.error) if rule.error else unknown_nids(rule, host_nids)
        guest.settings = GuestSettings(Mode.MANUAL) if wrong else rule.settings
        guest.problem = wrong
        if wrong:
            LOG.warning('guest=%s mode=manual reason="%s"', guest.name, wrong)


def unknown_nids(rule: GuestRule, host_nids: tuple[int, ...]) -> str | None:
    """Return what is wrong if the rule allows nodes that the host does not have."""
    missing = sorted(set(rule.settings.allowed_nids or ()) - set(host_nids))
    if not missing:
        return None
    return f"guests.{rule.pattern!r} allows nodes {missing}, but the host has {list(host_nids)}"


def merged(before: GuestTopology, now: GuestTopology) -> GuestTopology:
    """Return ``now``, without losing what libvirt told while it does not answer.

    A guest that is found as a bare KVM process while libvirtd restarts keeps its name and cells.
    """
    if before.origin != "libvirt" or now.origin == "libvirt":
        return now
    cpus = {vcpu.tid: vcpu.cpus for vcpu in now.vcpus}
    vcpus = tuple(replace(vcpu, cpus=cpus.get(vcpu.tid, vcpu.cpus)) for vcpu in before.vcpus)
    return replace(before, vcpus=vcpus)
