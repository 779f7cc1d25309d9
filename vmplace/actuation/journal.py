"""The journal: where pages, vCPUs and sysctls were before vmplace changed them.

A record is on disk before its change is made.  So after a kill at any moment, the file has every page, vCPU
and sysctl that may have been changed.  If the change itself was not made, ``undo`` finds nothing to do there.
"""

import contextlib
import errno
import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from vmplace.actuation.identity import PROC, GuestIdentity, has_ended, is_foreign, read_boot_id
from vmplace.actuation.journal_contents import (
    ForeignJournalError,
    JournalContents,
    Skips,
    every_guest,
    guest_id,
    living_frames,
    parse_journal,
)
from vmplace.actuation.journal_file import JournalFile, locked, unusable
from vmplace.actuation.journal_records import (
    MAGIC,
    AffinityRecord,
    GuestUndoneRecord,
    PagesRecord,
    Record,
    SysctlRecord,
    SysctlReturnedRecord,
    frame,
)
from vmplace.actuation.page_runs import OriginMap, PageOrigins, PageRuns
from vmplace.errors import JournalError
from vmplace.outside import error_text

LOG = logging.getLogger(__name__)
DEFAULT_PATH = Path("/var/lib/vmplace/journal")
_COMPACT_BYTES = 4 << 20
_TAKES_NOTHING = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
UNSETTLED = "nothing can be noted, as it cannot be written: the next undo tries all of it again"
MORE = "stop the agent and run `vmplace undo`, which has no limit of memory of its own"


@dataclass(frozen=True)
class Pin:
    """A vCPU thread, the CPUs that it may use, and those that it is pinned to.

    ``usable``: the list of the CPUs that it could use if it were not pinned.
    """

    vcpu_id: int
    tid: int
    start_time: int
    cpus: tuple[int, ...]
    set_to: tuple[int, ...] | None = None
    usable: str = ""


def read_journal(path: Path = DEFAULT_PATH) -> JournalContents:
    """Return what stands in a journal, without taking it; an absent file is an empty journal."""
    return parse_journal(_read(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as err:
        raise unusable(path, err, "read") from err


class Journal:
    """The one journal of the running agent; a second agent on the same path is turned away.

    It is waited for ``patience_s`` until the first one has ended.  ``beat`` is called with each record that
    is read or rewritten: of a TiB of moved pages, all of them take a minute.  One that does not ``settles``
    is only read, and records nothing.  One of another PID namespace is refused, unless ``any_namespace`` will
    do, as for sysctls: its guests stay in it, whatever their pids are here.
    """

    def __init__(  # noqa: PLR0913 - the path, and in which ways it may be opened
        self,
        path: Path = DEFAULT_PATH,
        *,
        proc: Path = PROC,
        patience_s: float = 0.0,
        beat: Callable[[], None] = lambda: None,
        settles: bool = True,
        any_namespace: bool = False,
    ) -> None:
        self.path, self._settles, self._any_namespace = path, settles, any_namespace
        self._proc, self._beat = proc, beat
        self._file: JournalFile | None = None
        self._lock = locked(path, patience_s, settles=settles)
        self.damage: tuple[str, ...] = ()
        try:
            with self._within_memory():
                if settles:
                    self._open()
                else:
                    self._check_namespace(parse_journal(_read(path), every_guest))
        except BaseException:
            self.close()
            raise

    @classmethod
    def for_undo(
        cls, path: Path, *, proc: Path = PROC, patience_s: float = 0.0, any_namespace: bool = False
    ) -> Self:
        """Open the journal; only to read it, if its disk takes nothing: pages go back all the same."""
        try:
            return cls(path, proc=proc, patience_s=patience_s, any_namespace=any_namespace)
        except JournalError as err:
            if not isinstance(err.__cause__, OSError) or err.__cause__.errno not in _TAKES_NOTHING:
                raise
            return cls(path, proc=proc, patience_s=patience_s, settles=False, any_namespace=any_namespace)

    def _open(self) -> None:
        """Make the file ready for more.  No page is decoded: that may take longer than a start may."""
        self._file = file = JournalFile(self.path)
        data = file.read()
        found = parse_journal(data, every_guest)
        self.damage = tuple(found.damage)
        if len(data) < len(MAGIC):
            file.begin(MAGIC)
        else:
            file.resume(found.end)
        self._compacted = file.end
        self._check_namespace(found)
        self._drop_ended(data, found)

    def _check_namespace(self, found: JournalContents) -> None:
        """Raise JournalError if it is of another PID namespace: there is no telling here who has ended."""
        if self._any_namespace:
            return
        with self._reading_proc():
            is_ours = not any(is_foreign(guest.identity, self._proc) for guest in found.guests.values())
        if not is_ours:
            raise JournalError(
                f"the journal {self.path} is of another PID namespace, whose guests are not known here",
                hint="run it in that one: hostPID: true in Kubernetes; if its container has ended, so have "
                "its guests: `vmplace undo --settings`, then remove the journal",
            )

    def _drop_ended(self, data: bytes, found: JournalContents) -> None:
        """Rewrite the file without guests that ended and without other boots, if there are any."""
        ended = self._ended()
        with self._reading_proc():
            boot_id = read_boot_id(self._proc)
        is_living = [not ended(guest.identity) for guest in found.guests.values()]
        if all((*is_living, *(one.boot_id == boot_id for one in found.sysctls.values()))):
            return
        # A full disk must not keep an undo from reading what is there; appending still fails loudly.
        with contextlib.suppress(Exception):
            self._replace(living_frames(data, ended, boot_id))

    def _ended(self) -> Skips:
        """Return what tells, asking once of each guest, whether it has ended: nothing is done to its pages.

        On a host where guests come and go, their pages may be more than there is memory for.
        """
        return functools.cache(lambda identity: has_ended(identity, self._proc))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file and its lock; the contents stay."""
        if self._file is not None:
            self._file.close()
        lock, self._file, self._lock = self._lock, None, -1
        if lock >= 0:
            os.close(lock)

    def record_pages(self, identity: GuestIdentity, runs: PageRuns, to: PageRuns | None = None) -> None:
        """Note the present nodes of pages that are about to be moved, and to which."""
        self._append(PagesRecord(guest_id(identity), runs.encoded(), to.encoded() if to else b""))

    def record_affinities(self, identity: GuestIdentity, pins: Iterable[Pin], *, by_libvirt: bool) -> None:
        """Note the CPUs of vCPU threads of a guest that are about to be pinned, and to which: all at once."""
        guest = guest_id(identity)
        records = (
            AffinityRecord(
                guest,
                pin.vcpu_id,
                pin.tid,
                pin.start_time,
                pin.cpus,
                by_libvirt,
                pin.set_to,
                usable=pin.usable,
            )
            for pin in pins
        )
        self._append(*records)

    def record_sysctl(self, name: str, before: str, after: str) -> SysctlRecord:
        """Note the value of a sysctl that is about to be set; return what was noted."""
        with self._reading_proc():
            record = SysctlRecord(name, before, after, read_boot_id(self._proc))
        self._append(record)
        return record

    def record_sysctl_returned(self, name: str) -> None:
        """Note that a sysctl is no longer ours."""
        self._append(SysctlReturnedRecord(name))

    def record_undone(
        self,
        identity: GuestIdentity,
        rest: Sequence[PageOrigins] = (),
        affinities: Sequence[AffinityRecord] = (),
    ) -> None:
        """Note that a guest is as it was, but for ``rest`` and ``affinities``."""
        steps = [step for pages in rest for step in pages.steps()]
        left, to = (tuple(step[side].encoded() for step in steps) for side in (0, 1))
        self._append(GuestUndoneRecord(guest_id(identity), left, tuple(affinities), to))

    def contents(self, guests: Iterable[GuestIdentity] | None = None) -> JournalContents:
        """Return the sum of all that was written, but for sysctls of other boots.

        These are still in the file if that could not be rewritten, as on a full disk.  Only pages of
        ``guests`` are in it, if these are given.
        """
        ended, keys = self._ended(), None if guests is None else {one.key for one in guests}
        return self._parsed(lambda one: (keys is not None and one.key not in keys) or ended(one))

    def without_pages(self) -> JournalContents:
        """Return the same without pages, which take long to decode."""
        return self._parsed(every_guest)

    def _parsed(self, skips: Skips) -> JournalContents:
        with self._within_memory():
            # By the descriptor: the path may have another file by now.
            data = self._file.read() if self._file else _read(self.path)
            whole = parse_journal(data, skips, self._beat)
        # Opening the file found all damage but that in the pages of a sound frame.
        self.damage = tuple(dict.fromkeys((*self.damage, *whole.damage)))
        with self._reading_proc():
            return whole.of_boot(read_boot_id(self._proc))

    def origins(self, identity: GuestIdentity) -> OriginMap:
        """Return where every page of one guest that was ever moved came from."""
        return self.contents((identity,)).guest(identity).pages

    def compact(self) -> None:
        """Rewrite the file as its sum; guests that ended drop out."""
        contents = self.contents()
        with self._reading_proc():
            pruned = contents.pruned(self._proc)
        with self._within_memory():
            self._rewrite(pruned)

    def _append(self, *records: Record) -> None:
        if not self._settles:
            self.damage = tuple(dict.fromkeys((*self.damage, UNSETTLED)))
            return
        if self._file is None:
            raise JournalError("the journal is closed")
        self._file.append(b"".join(map(frame, records)))
        if self._file.is_lost():
            LOG.warning("the journal %s was removed: it is written anew", self.path)
            self._rewrite(self.contents())
        if self._file.end > max(_COMPACT_BYTES, 4 * self._compacted):
            self._tidy()

    def _tidy(self) -> None:
        # A full disk must not keep an undo from reading what is there; appending still fails loudly.
        with contextlib.suppress(Exception):
            self.compact()
        self._compacted = self._file.end if self._file else 0

    def _rewrite(self, contents: JournalContents) -> None:
        self._replace(map(frame, contents.records()))

    def _replace(self, frames: Iterable[bytes]) -> None:
        if self._file is None:
            raise JournalError("the journal is closed")
        self._file.replace(self._beating(itertools.chain([MAGIC], frames)))
        self._compacted = self._file.end

    def _beating(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        for part in parts:
            self._beat()
            yield part

    @contextlib.contextmanager
    def _within_memory(self) -> Iterator[None]:
        try:
            yield
        except MemoryError as err:
            raise JournalError(f"there is not enough memory for the journal {self.path}", hint=MORE) from err
        except ForeignJournalError as err:
            raise JournalError(f"{self.path}: {err}", hint=err.hint) from err

    @contextlib.contextmanager
    def _reading_proc(self) -> Iterator[None]:
        """Turn errors of /proc into JournalError: the boot id and living processes are read there."""
        try:
            yield
        except OSError as err:
            raise unusable(self.path, err) from err
        except Exception as err:
            said = f"cannot tell what of the journal {self.path} still runs: {error_text(err)}"
            raise JournalError(said, hint=f"look at {self._proc}/sys/kernel/random/boot_id") from err
