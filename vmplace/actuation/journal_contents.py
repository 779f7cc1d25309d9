"""What does a journal say in sum: what is to be restored of each guest, and of the host?"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from vmplace.actuation.identity import PROC, GuestIdentity, has_ended, read_boot_id
from vmplace.actuation.journal_records import (
    MAGIC,
    AffinityRecord,
    GuestId,
    GuestUndoneRecord,
    PagesRecord,
    Record,
    SysctlRecord,
    SysctlReturnedRecord,
    iter_frames,
)
from vmplace.actuation.page_runs import OriginMap, PageRuns, decode_runs
from vmplace.actuation.tied_again import tied_again
from vmplace.errors import JournalError

Skips = Callable[[GuestIdentity], bool]


def _no_guest(identity: GuestIdentity) -> bool:
    return False


def every_guest(identity: GuestIdentity) -> bool:
    """Skip the pages of all guests, which take long to decode."""
    return True


def _nothing() -> None:
    pass


@dataclass
class GuestOrigins:
    """What is to be restored of one guest: pages to their nodes, vCPU threads (by tid) to their CPUs."""

    identity: GuestIdentity
    pages: OriginMap = field(default_factory=OriginMap)
    affinities: dict[int, AffinityRecord] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is left to be restored."""
        return not self.affinities and self.pages.is_empty


@dataclass
class JournalContents:
    """The sum of a journal: guests by identity, sysctls by name, and what was damaged, in words.

    ``skips``: of which guests no page is taken in.
    """

    guests: dict[tuple[str, int, int], GuestOrigins] = field(default_factory=dict)
    sysctls: dict[str, SysctlRecord] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    end: int = 0
    skips: Skips = _no_guest

    def guest(self, identity: GuestIdentity) -> GuestOrigins:
        """Return the entry of one guest, a new one if it has none; it goes by the name that came last."""
        entry = self.guests.setdefault(identity.key, GuestOrigins(identity))
        entry.identity = identity
        return entry

    def fold(self, record: Record) -> None:
        """Take in one more record; what was before vmplace stays, until somebody else changes it."""
        match record:
            case PagesRecord():
                self._add_pages(identity_of(record.guest), record.runs, record.to)
            case AffinityRecord():
                self._fold_affinity(record)
            case SysctlRecord():
                self._fold_sysctl(record)
            case SysctlReturnedRecord():
                self.sysctls.pop(record.name, None)
            case GuestUndoneRecord():
                self._fold_undone(record)

    def _add_pages(self, identity: GuestIdentity, runs: bytes, to: bytes) -> None:
        pages = self.guest(identity).pages
        if not self.skips(identity):
            pages.add(*_decoded(runs, to))

    def _fold_sysctl(self, record: SysctlRecord) -> None:
        first = self.sysctls.setdefault(record.name, record)
        if first.boot_id != record.boot_id:
            # A boot sets all sysctls anew: what was before the last one says nothing any more.
            self.sysctls[record.name] = record

    def _fold_affinity(self, record: AffinityRecord) -> None:
        pins = self.guest(identity_of(record.guest)).affinities
        first = pins.get(record.tid)
        pins[record.tid] = record if first is None else tied_again(first, record)

    def _fold_undone(self, record: GuestUndoneRecord) -> None:
        identity = identity_of(record.guest)
        self.guests.pop(identity.key, None)
        for runs, to in itertools.zip_longest(record.rest, record.rest_to[: len(record.rest)], fillvalue=b""):
            self._add_pages(identity, runs, to)
        for affinity in record.rest_affinities:
            self.guest(identity).affinities[affinity.tid] = affinity

    def pruned(self, proc: Path = PROC) -> "JournalContents":
        """Return the contents without guests that ended and without other boots."""
        guests = {k: g for k, g in self.guests.items() if not g.is_empty and not has_ended(g.identity, proc)}
        of_boot = self.of_boot(read_boot_id(proc))
        return JournalContents(guests, of_boot.sysctls, list(self.damage), self.end)

    def of_boot(self, boot_id: str) -> "JournalContents":
        """Return the contents without sysctls of other boots; guests of these have ended."""
        sysctls = {name: one for name, one in self.sysctls.items() if one.boot_id == boot_id}
        return JournalContents(self.guests, sysctls, self.damage, self.end)

    def records(self) -> Iterable[Record]:
        """Yield the fewest records that say the same."""
        yield from self.sysctls.values()
        for guest in self.guests.values():
            # Under its present name: the name in the last record counts.
            of = guest_id(guest.identity)
            for affinity in guest.affinities.values():
                yield msgspec.structs.replace(affinity, guest=of)
            for pages in guest.pages.iter_pages():
                for runs, to in pages.steps():
                    yield PagesRecord(of, runs.encoded(), to.encoded())


def _decoded(runs: bytes, to: bytes) -> tuple[PageRuns, PageRuns | None]:
    return decode_runs(runs), decode_runs(to) if to else None


def identity_of(guest: GuestId) -> GuestIdentity:
    """Return what an identity on disk says."""
    return GuestIdentity(guest.name, guest.pid, guest.start_time, guest.boot_id, guest.pid_namespace)


def guest_id(identity: GuestIdentity) -> GuestId:
    """Return an identity as it is on disk."""
    return GuestId(*(getattr(identity, name) for name in GuestId.__struct_fields__))


def living_frames(data: bytes, ended: Skips, boot_id: str) -> Iterator[bytes]:
    """Yield the sound frames of a journal file as they are, but of guests that ended and of other boots."""
    for start, end, record in iter_frames(data):
        if isinstance(record, SysctlRecord):
            is_living = record.boot_id == boot_id
        else:
            is_living = isinstance(record, SysctlReturnedRecord) or not ended(identity_of(record.guest))
        if is_living:
            yield data[start:end]


class ForeignJournalError(JournalError):
    """The bytes are no journal; whoever knows their file names it."""


def parse_journal(
    data: bytes, skips: Skips = _no_guest, beat: Callable[[], None] = _nothing
) -> JournalContents:
    """Return the sum of a journal file's bytes; damaged parts are left out and reported.

    Pages of guests that it ``skips`` are not decoded.  ``beat`` is called for each record.
    """
    contents = JournalContents(end=len(MAGIC), skips=skips)
    if data and not data.startswith(MAGIC[: len(data)]):
        raise ForeignJournalError(
            "the file is not a journal of this version of vmplace",
            hint="move it away; if another version wrote it, let that version undo first",
        )
    for start, end, record in iter_frames(data):
        beat()
        if start != contents.end:
            contents.damage.append(f"bytes {contents.end} to {start} are damaged and were skipped")
        contents.end = end
        try:
            contents.fold(record)
        except ValueError as err:
            contents.damage.append(f"bytes {start} to {end} hold no sound record: {err}")
    if len(data) > contents.end:
        contents.damage.append(f"the last {len(data) - contents.end} bytes are an unfinished record")
    return contents
