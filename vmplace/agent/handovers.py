"""Summaries of page statistics that migrate with a guest: write them, and use those that arrive.

libvirt sends the metadata of a domain with its XML.  It reads the XML as the migration begins, and allows no
change later.  So the summary (model/handover.py) must be there before anybody asks for a migration.  The
agent writes the summaries of all guests into their live XML every now and then, by a process of its own, and
removes them when it stops.  The destination reads them with the policy.  A guest that comes back from a
managed save has its own summary.
"""

import contextlib
import logging
from collections.abc import Callable

from vmplace.agent.clock import Clock
from vmplace.agent.parts import Summaries
from vmplace.agent.roster import Roster
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.errors import OutsideError, VmplaceError
from vmplace.model.handover import Handover, handover_of, handover_text, parse_handover
from vmplace.model.pages import GuestPages
from vmplace.model.prior_pages import known_for_s, prior_pages
from vmplace.policy.plan import Mode
from vmplace.sampling.sample import SampleBatch
from vmplace.sampling.source import nothing
from vmplace.topology.host import HostTopology

LOG = logging.getLogger(__name__)
FAREWELL_S = 5.0


class Handovers:
    """Writes the summaries of guests in mode auto every ``every_s``; without ``summaries`` it only reads."""

    def __init__(
        self, summaries: Summaries | None, every_s: float, clock: Clock, beat: Callable[[], None] = nothing
    ) -> None:
        """``beat`` is called for each guest that is summed up."""
        self._beat = beat
        self._summaries = summaries if every_s else None
        self._every_s = every_s
        self._clock = clock
        self._due_s = clock.monotonic() + every_s
        self._written: set[str] = set()

    def prior(self, guest: TrackedGuest, host: HostTopology | None, batch: SampleBatch) -> GuestPages | None:
        """Return what the guest's last host knew of its pages, for its first window here."""
        if host is None or guest.said is None or not guest.said.placement:
            return None
        if guest.settings.mode is Mode.AUTO and guest.topology.uuid:
            # It came along, and goes with what is written here.
            self._written.add(guest.topology.uuid)
        try:
            handover = parse_handover(guest.said.placement)
        except OutsideError as err:
            LOG.warning('guest=%s reason="%s"', guest.name, err)
            return None
        known_s = known_for_s(handover, self._clock.unix_s())
        pages = prior_pages(handover, host, guest.topology, batch) if known_s else None
        if pages is not None:
            guest.known_s = known_s
            reported = (guest.name, len(handover.runs), known_s)
            LOG.info('guest=%s runs=%d reason="its last host knew its pages, as of %.0f s"', *reported)
        return pages

    def write_due(self, roster: Roster, host: HostTopology | None) -> None:
        """Write what is due; raises VmplaceError if the last time failed."""
        if self._summaries is None or host is None or self._summaries.is_busy():
            return
        if self._clock.monotonic() < self._due_s:
            return
        self._due_s = self._clock.monotonic() + self._every_s
        self._written &= {guest.topology.uuid for guest in roster if guest.topology.uuid}
        texts = {}
        for guest in roster:
            self._beat()
            uuid = guest.topology.uuid
            if uuid and (text := self._text(guest, host)):
                texts[uuid] = text
            elif uuid in self._written and guest.settings.mode is not Mode.AUTO:
                texts[uuid] = ""
        if texts:
            self._summaries.write(texts)
            self._written = {uuid for uuid in self._written | texts.keys() if texts.get(uuid) != ""}

    def close(self) -> None:
        """Take out what was written."""
        if self._summaries is None or not self._written:
            return
        try:
            # What cannot be written is no reason to leave what was.
            with contextlib.suppress(VmplaceError, TimeoutError):
                self._summaries.finish(FAREWELL_S)
            self._summaries.close()
            self._summaries.write(dict.fromkeys(self._written, ""))
            self._summaries.finish(FAREWELL_S)
        finally:
            self._summaries.close()

    def _text(self, guest: TrackedGuest, host: HostTopology) -> str:
        """Return the summary of one guest, empty for none; a failure, as for lack of memory, is its own."""
        try:
            handover = self._handover(guest, host)
        except Exception as err:
            guest.note(err)
            return ""
        return handover_text(handover) if handover else ""

    def _handover(self, guest: TrackedGuest, host: HostTopology) -> Handover | None:
        if guest.settings.mode is not Mode.AUTO or guest.topology.origin != "libvirt":
            return None
        if guest.pages is None or guest.is_migrating:
            return None
        return handover_of(
            host,
            guest.topology,
            guest.pages,
            unix_s=self._clock.unix_s(),
            known_s=guest.known_for_s(self._clock.monotonic()),
        )
