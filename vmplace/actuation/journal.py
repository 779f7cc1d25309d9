"""What was where before vmplace touched it?  Written and on disk before anything is changed.

Killed at any moment, the file tells every page, vCPU and sysctl that may have been changed; one that was
written but not changed yet is simply found at home by ``undo``.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from vmplace.actuation.identity import PROC, GuestIdentity, is_alive, read_boot_id
from vmplace.actuation.journal_records import (
    MAGIC,
    AffinityRecord,
    GuestId,
    GuestUndoneRecord,
    PagesRecord,
    Record,
    SysctlRecord,
    SysctlReturnedRecord,
    frame,
    iter_frames,
)
from vmplace.actuation.page_runs import OriginMap, PageRuns, decode_runs
from vmplace.errors import JournalError

DEFAULT_PATH = Path("/var/lib/vmplace/journal")
_COMPACT_BYTES = 4 << 20


@dataclass
class GuestOrigins:
    """What is to be restored of one guest: pages to their nodes, vCPU threads (by tid) to their CPUs."""

    identity: GuestIdentity
    pages: OriginMap = field(default_factory=OriginMap)
    affinities: dict[int, AffinityRecord] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is left to be restored."""
        return not self.affinities and not self.pages.total_pages


@dataclass
class JournalContents:
    """The sum of a journal: guests by identity, sysctls by name, and what was damaged, in words."""

    guests: dict[tuple[str, int, int], GuestOrigins] = field(default_factory=dict)
    sysctls: dict[str, SysctlRecord] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    end: int = 0

    def guest(self, identity: GuestIdentity) -> GuestOrigins:
        """Return the entry of one guest, a new one if it has none."""
        return self.guests.setdefault(identity.key, GuestOrigins(identity))

    def fold(self, record: Record) -> None:
        """Take in one more record; what was written first about a page, thread or sysctl stays."""
        match record:
            case PagesRecord():
                self.guest(_identity(record.guest)).pages.add(decode_runs(record.runs))
            case AffinityRecord():
                self.guest(_identity(record.guest)).affinities.setdefault(record.tid, record)
            case SysctlRecord():
                self.sysctls.setdefault(record.name, record)
            case SysctlReturnedRecord():
                self.sysctls.pop(record.name, None)
            case GuestUndoneRecord():
                self._fold_undone(record)

    def _fold_undone(self, record: GuestUndoneRecord) -> None:
        identity = _identity(record.guest)
        self.guests.pop(identity.key, None)
        for runs in record.rest:
            self.guest(identity).pages.add(decode_runs(runs))
        for affinity in record.rest_affinities:
            self.guest(identity).affinities[affinity.tid] = affinity

    def pruned(self, proc: Path = PROC) -> "JournalContents":
        """Return the contents without guests that ended and without other boots."""
        boot_id = read_boot_id(proc)
        guests = {k: g for k, g in self.guests.items() if not g.is_empty and is_alive(g.identity, proc)}
        sysctls = {name: s for name, s in self.sysctls.items() if s.boot_id == boot_id}
        return JournalContents(guests, sysctls, list(self.damage), self.end)

    def records(self) -> Iterable[Record]:
        """Yield the fewest records that say the same."""
        yield from self.sysctls.values()
        for guest in self.guests.values():
            yield from guest.affinities.values()
            for runs in guest.pages.iter_runs():
                yield PagesRecord(_guest_id(guest.identity), runs.encoded())


def _identity(guest: GuestId) -> GuestIdentity:
    return GuestIdentity(guest.name, guest.pid, guest.start_time, guest.boot_id)


def _guest_id(identity: GuestIdentity) -> GuestId:
    return GuestId(identity.name, identity.pid, identity.start_time, identity.boot_id)


def parse_journal(data: bytes) -> JournalContents:
    """Return the sum of a journal file's bytes; damaged parts are skipped and reported."""
    contents = JournalContents(end=len(MAGIC))
    if data and not data.startswith(MAGIC[: len(data)]):
        raise JournalError(
            "the file is not a journal of this version of vmplace",
            hint="move it away; if another version wrote it, let that version undo first",
        )
    for start, end, record in iter_frames(data):
        if start != contents.end:
            contents.damage.append(f"bytes {contents.end} to {start} are damaged and were skipped")
        contents.end = end
        contents.fold(record)
    if len(data) > contents.end:
        contents.damage.append(f"the last {len(data) - contents.end} bytes are an unfinished record")
    return contents


def read_journal(path: Path = DEFAULT_PATH) -> JournalContents:
    """Return what stands in a journal, without taking it; an absent file is an empty journal."""
    try:
        return parse_journal(path.read_bytes())
    except FileNotFoundError:
        return JournalContents()
    except OSError as err:
        raise JournalError(f"cannot read the journal {path}: {err.strerror}") from err


class Journal:
    """The one journal of the running agent; a second agent on the same path is turned away."""

    def __init__(self, path: Path = DEFAULT_PATH, *, proc: Path = PROC) -> None:
        self.path = path
        self._proc = proc
        self._fd = -1
        self._lock = _locked(path)
        try:
            found = read_journal(path)
            self.damage: tuple[str, ...] = tuple(found.damage)
            self._open(found)
            pruned = found.pruned(proc)
            if len(pruned.guests) + len(pruned.sysctls) < len(found.guests) + len(found.sysctls):
                self._tidy()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file and its lock; the contents stay."""
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    def record_pages(self, identity: GuestIdentity, runs: PageRuns) -> None:
        """Note the present nodes of pages that are about to be moved."""
        self._append(PagesRecord(_guest_id(identity), runs.encoded()))

    def record_affinity(  # noqa: PLR0913 - one line of the record
        self,
        identity: GuestIdentity,
        *,
        vcpu_id: int,
        tid: int,
        thread_start_time: int,
        cpus: tuple[int, ...],
        by_libvirt: bool,
    ) -> None:
        """Note the CPUs of a vCPU thread that is about to be pinned."""
        guest = _guest_id(identity)
        self._append(AffinityRecord(guest, vcpu_id, tid, thread_start_time, cpus, by_libvirt))

    def record_sysctl(self, name: str, before: str, after: str) -> None:
        """Note the value of a sysctl that is about to be set."""
        self._append(SysctlRecord(name, before, after, read_boot_id(self._proc)))

    def record_sysctl_returned(self, name: str) -> None:
        """Note that a sysctl is no longer ours."""
        self._append(SysctlReturnedRecord(name))

    def record_undone(
        self,
        identity: GuestIdentity,
        rest: Sequence[PageRuns] = (),
        affinities: Sequence[AffinityRecord] = (),
    ) -> None:
        """Note that a guest is as it was, but for ``rest`` and ``affinities``."""
        encoded = tuple(runs.encoded() for runs in rest)
        self._append(GuestUndoneRecord(_guest_id(identity), encoded, tuple(affinities)))

    def contents(self) -> JournalContents:
        """Return the sum of all that was written."""
        return read_journal(self.path)

    def origins(self, identity: GuestIdentity) -> OriginMap:
        """Return the earliest node of every page of one guest that was ever moved."""
        return self.contents().guest(identity).pages

    def compact(self) -> None:
        """Rewrite the file as its sum; guests that ended drop out."""
        self._rewrite(self.contents().pruned(self._proc))

    def _append(self, record: Record) -> None:
        if self._fd < 0:
            raise JournalError("the journal is closed")
        try:
            _write_all(self._fd, frame(record))
            os.fdatasync(self._fd)
        except OSError as err:
            self._cut_back()
            raise _unwritable(self.path, err) from err
        self._end = os.lseek(self._fd, 0, os.SEEK_CUR)
        if self._end > max(_COMPACT_BYTES, 4 * self._compacted):
            self._tidy()

    def _tidy(self) -> None:
        # A full disk must not keep an undo from reading what is there; appending still fails loudly.
        with contextlib.suppress(JournalError):
            self.compact()
        self._compacted = self._end

    def _open(self, found: JournalContents) -> None:
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.fstat(self._fd).st_size < len(MAGIC):
                os.ftruncate(self._fd, 0)
                _write_all(self._fd, MAGIC)
                os.fsync(self._fd)
                _sync_directory(self.path.parent)
        except OSError as err:
            raise _unwritable(self.path, err) from err
        self._end = self._compacted = max(found.end, len(MAGIC))
        self._cut_back()

    def _cut_back(self) -> None:
        # Without this a later record would follow half of one; readers would skip it, but report damage.
        os.ftruncate(self._fd, self._end)
        os.lseek(self._fd, self._end, os.SEEK_SET)

    def _rewrite(self, contents: JournalContents) -> None:
        new = self.path.with_name(self.path.name + ".new")
        try:
            fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(fd, MAGIC)
                for record in contents.records():
                    _write_all(fd, frame(record))
                os.fsync(fd)
                new.rename(self.path)
                _sync_directory(self.path.parent)
            except BaseException:
                os.close(fd)
                raise
        except OSError as err:
            new.unlink(missing_ok=True)
            raise _unwritable(self.path, err) from err
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._end = self._compacted = os.lseek(fd, 0, os.SEEK_CUR)


def _locked(path: Path) -> int:
    # A file of its own: compaction replaces the journal's inode.  The kernel drops the lock on kill -9.
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise _unwritable(path, err) from err
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        os.close(fd)
        raise JournalError(
            f"the journal {path} is in use by another vmplace",
            hint="stop the other agent, or ask it through its control socket",
        ) from err
    return fd


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unwritable(path: Path, err: OSError) -> JournalError:
    full = err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    hint = f"free some space on the file system of {path}" if full else f"make {path.parent} writable"
    return JournalError(f"cannot write the journal {path}, nothing is moved: {err.strerror}", hint=hint)
