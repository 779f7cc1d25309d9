"""Which guests does the agent know, and who came, went or has another policy?"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from vmplace.agent.config import LoadedConfig
from vmplace.agent.decided import LEFT_ALONE, Decided, changed_words, decided
from vmplace.agent.discovered import Discovered
from vmplace.agent.news import ARRIVES, MIGRATES, SETTLES, News
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.errors import GuestGoneError
from vmplace.held import HeldError
from vmplace.policy.plan import GuestSettings, GuestView, Mode
from vmplace.policy.schedule import is_open
from vmplace.policy.trial import Trial
from vmplace.topology.domain_policy import DomainPolicy, Numatune
from vmplace.topology.guest import GuestTopology, Identity

LOG = logging.getLogger(__name__)
MIGRATING_S = 30.0
MISSED_KEPT = 1000
"""Guests that were placed and not found any more."""


class Roster:
    """The guests of the host by name, following their coming and going."""

    def __init__(
        self,
        loaded: LoadedConfig,
        holds: Callable[[GuestTopology], bool] = lambda guest: False,
        is_held: Callable[[GuestTopology], bool] = lambda guest: False,
    ) -> None:
        """``holds`` tells whether a guest would hold up a step that reads its memory map.

        ``is_held``: whether root ordered, perhaps an earlier agent, to leave it alone.
        """
        self._loaded, self._holds, self._is_held = loaded, holds, is_held
        self.placed: Collection[Identity] = ()
        """Whom an earlier agent placed: their first placement is not on trial any more."""
        self._missed: dict[Identity, Trial] = {}
        self._guests: dict[str, TrackedGuest] = {}
        self._gone: list[GuestTopology] = []
        self._migrating: dict[str, float] = {}

    def __iter__(self) -> Iterator[TrackedGuest]:
        return iter(tuple(self._guests.values()))

    def get(self, name: str) -> TrackedGuest | None:
        """Return the guest called ``name``, or None."""
        return self._guests.get(name)

    def names(self) -> tuple[str, ...]:
        """Return all names."""
        return tuple(self._guests)

    def found(self) -> Discovered:
        """Return what is known of all guests, for a moment in which they cannot be looked up."""
        uuids = [(guest, guest.topology.uuid) for guest in self]
        return Discovered(
            tuple(guest.topology for guest in self),
            awaited=frozenset(uuid for guest, uuid in uuids if uuid and guest.is_awaited),
            migrating=frozenset(uuid for guest, uuid in uuids if uuid and guest.is_migrating),
            bound={guest.topology.identity: guest.bound for guest in self if guest.bound.nids},
        )

    def views(self, now_s: float | None = None) -> tuple[GuestView, ...]:
        """Return what the policy may know of each guest; one that cannot be read is left out, with a note.

        ``now_s`` of the monotonic clock, for whom it matters for how long a guest has been watched.
        """
        views = []
        for guest in self:
            try:
                view = guest.view.sped_up(self._loaded.config.clock.scale)
                known_s = view.known_s if now_s is None else guest.known_for_s(now_s)
                views.append(replace(view, known_s=known_s))
            except Exception as err:
                guest.note(err)
        return tuple(views)

    def reload(self, loaded: LoadedConfig, host_nids: tuple[int, ...]) -> None:
        """Go on with another configuration."""
        self._loaded = loaded
        for guest in self:
            self._apply_rule(guest, host_nids)

    @property
    def are_awaited(self) -> bool:
        """Tell whether libvirt has yet to say what may be done with any of the guests there are."""
        return bool(self._guests) and all(guest.is_awaited for guest in self)

    def follow_domains(self, found: Discovered, host_nids: tuple[int, ...], now_s: float) -> bool:
        """Follow what libvirt says: the policies in domains' XML, and who migrates.

        Return whether libvirt answered now for a guest that had to be left alone until then.
        """
        is_answered = False
        self._migrating = {name: until for name, until in self._migrating.items() if until > now_s}
        for guest in self:
            uuid, was_awaited, identity = guest.topology.uuid or "", guest.is_awaited, guest.topology.identity
            guest.is_awaited = guest.said is None and uuid in found.awaited
            is_answered |= was_awaited and not guest.is_awaited
            guest.is_migrating = (
                uuid in found.migrating or guest.name in self._migrating or identity in found.stated_migrating
            )
            said = found.policies.get(uuid, found.stated.get(identity, guest.said))
            bound = Numatune() if uuid in found.policies else found.bound.get(identity, Numatune())
            if (said, bound) != (guest.said, guest.bound):
                guest.said, guest.bound = said, bound
                self._apply_rule(guest, host_nids)
        return is_answered

    def follow_news(self, news: News, now_s: float) -> None:
        """Follow what happened to a guest: one that migrates is left alone until libvirt says it is over.

        libvirt's own word on migrations comes a moment after the hook's; ``MIGRATING_S`` bridges that.
        """
        if news.operation in MIGRATES:
            self._migrating[news.guest] = now_s + MIGRATING_S
        elif news.operation in SETTLES:
            self._migrating.pop(news.guest, None)
        if guest := self.get(news.guest):
            guest.is_migrating |= news.operation in MIGRATES

    def is_known(self, news: News, now_s: float) -> bool:
        """Tell whether news change nothing of what holds for the guests that there are."""
        return self.get(news.guest) is None or self.is_under_way(news, now_s)

    def is_under_way(self, news: News, now_s: float) -> bool:
        """Tell whether news are of a migration that is known already, and not of its end."""
        return news.operation in MIGRATES | ARRIVES and self._migrating.get(news.guest, 0.0) > now_s

    def follow_time(self, unix_s: float) -> None:
        """Follow the guests' schedules, in the host's local time."""
        now = time.localtime(unix_s)
        for guest in self:
            guest.is_off_hours = not is_open(
                guest.settings.schedule, now.tm_wday, now.tm_hour * 60 + now.tm_min
            )

    def update(self, found: Iterable[GuestTopology], host_nids: tuple[int, ...]) -> bool:
        """Make the roster that of ``found``; return whether a guest came or went."""
        known = {guest.topology.identity: guest for guest in self}
        before = set(known)
        after: dict[str, TrackedGuest] = {}
        for guest in self:
            guest.begin_window()
        for topology in found:
            guest = known.get(topology.identity) or self._new(topology)
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

    def _new(self, topology: GuestTopology) -> TrackedGuest:
        trial = self._missed.pop(topology.identity, Trial(kept=topology.identity in self.placed))
        return TrackedGuest(topology, held=self._is_held(topology), trial=trial)

    def forget(self, guest: TrackedGuest, reason: str) -> None:
        """Drop a guest that ended."""
        if self._guests.get(guest.name) is guest:
            del self._guests[guest.name]
            self._gone.append(guest.topology)
            if guest.moved_bytes or guest.trial.kept or guest.trial.is_undo_due:
                # It may be there again at the next look, as the same process.
                self._missed[guest.topology.identity] = guest.trial.anew()
                for oldest in tuple(self._missed)[:-MISSED_KEPT]:
                    del self._missed[oldest]
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
            if self._holds(guest.topology):
                raise HeldError
            step(guest.topology)
        except GuestGoneError as err:
            self.forget(guest, str(err))
        except Exception as err:
            guest.note(err)
        else:
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
        try:
            said = replace(guest.said or DomainPolicy(), numatune=guest.numatune)
            what = decided(self._loaded, guest.name, said, host_nids, guest.topology.origin)
        except Exception as err:
            LOG.exception("guest=%s its policy cannot be read", guest.name)
            what = Decided(LEFT_ALONE, problem=f"its policy cannot be read: {type(err).__name__}: {err}")
        before = guest.decided
        guest.follow(what)
        if before is not None and Mode.MANUAL is guest.settings.mode is not before.settings.mode:
            # Hands off: what samples it lets go of it.
            self._gone.append(guest.topology)
            guest.let_go_of_pages()
        if what.problem:
            LOG.warning('guest=%s mode=manual reason="%s"', guest.name, what.problem)
        elif before is not None and (changes := changed_words(before, what)):
            LOG.info('guest=%s policy="%s"', guest.name, changes)


def merged(before: GuestTopology, now: GuestTopology) -> GuestTopology:
    """Return ``now``, without losing what libvirt reported while it does not answer.

    A guest that is found as a bare KVM process while libvirtd restarts keeps its name and cells.
    """
    if before.origin != "libvirt" or now.origin == "libvirt":
        return now
    cpus = {vcpu.tid: vcpu.cpus for vcpu in now.vcpus}
    vcpus = tuple(replace(vcpu, cpus=cpus.get(vcpu.tid, vcpu.cpus)) for vcpu in before.vcpus)
    return replace(before, vcpus=vcpus)
