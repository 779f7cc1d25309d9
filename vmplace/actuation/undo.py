"""Put everything back: every page still there to its node, every vCPU to its CPUs, every sysctl to its value.

What somebody else has changed since, be it pages, CPUs or sysctls, is left as it is and reported.

Safe to run again, also after kill -9 in its middle: what is at home already is left alone, and the journal is
settled per guest only after that guest is done.  Pages that would not go back stay in the journal.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vmplace import held, left_behind
from vmplace.actuation.affinity import KernelCpus, LibvirtConnection, ThreadCpus
from vmplace.actuation.batch import (
    UNTRIED,
    CallWaits,
    MoveKernel,
    NativeKernel,
    move_batch,
    read_nids,
    read_settled_nids,
)
from vmplace.actuation.batch_size import BatchSize, BatchSizes
from vmplace.actuation.identity import PROC, GuestIdentity, is_alive, read_start_time
from vmplace.actuation.journal import MORE, Journal
from vmplace.actuation.journal_contents import GuestOrigins
from vmplace.actuation.ownership import restore_sysctl
from vmplace.actuation.page_runs import PageOrigins
from vmplace.actuation.tally import errno_name
from vmplace.actuation.undo_vcpus import SYSFS, VcpusUndoing
from vmplace.errors import GuestGoneError, VmplaceError
from vmplace.held import HeldError
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES

_ATTEMPTS = 3
NO_ROOM = "no room on node"
MOST_PAUSED_S = 5.0
"""Of the undo of a guest."""
_HUGE_PAGES = HUGE_BYTES // PAGE_BYTES


@dataclass(frozen=True)
class GuestUndo:
    """What became of one guest, in 4 KiB pages and vCPUs.

    ``restored`` went back; ``at_home`` were there already; ``gone`` are no longer mapped; ``stuck`` would
    not go back, by reason (errno name, "stopped", or that there is no room).  ``others_pages`` were moved by
    somebody else since vmplace moved them, and stay; ``others_vcpus`` were given other CPUs since vmplace
    tied them, and keep these.  ``offline_cpus`` are those that ``vcpus`` had, too, and that are offline now.
    """

    guest: str
    restored: int = 0
    at_home: int = 0
    gone: int = 0
    stuck: Mapping[str, int] = field(default_factory=dict)
    vcpus: int = 0
    others_pages: int = 0
    others_vcpus: int = 0
    offline_cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class UndoResult:
    """The undo of all guests that still run; ``failures`` in words, ``sysctls`` what was done to each.

    ``ended``: guests that do not run any more; the journal forgets them.  ``damage``: parts of the journal
    that could not be read, in words.
    """

    guests: tuple[GuestUndo, ...] = ()
    sysctls: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Tell whether everything is as it was."""
        return not self.failures and not any(guest.stuck for guest in self.guests)


class Allowance(Protocol):
    """What an undo may move; asked before each call; after some, it learns what moved."""

    def wait(self, size_bytes: int) -> int:
        """Wait until so much, or a part of it, may be moved; return how much, 0 if that will never be."""

    def refund(self, size_bytes: int) -> None:
        """Take back what was not moved after all."""


Room = Callable[[int], int | None]
"""Returns how many bytes a node can take now; None if that is not known."""

Progress = Callable[[str, int, int], None]
"""Takes the name of a guest, how many of its pages are done, and how many there are."""


def undo(  # noqa: PLR0913 - all but the journal are seams
    journal: Journal,
    proc: Path = PROC,
    *,
    guests: Iterable[GuestIdentity] | None = None,
    kernel: MoveKernel | None = None,
    libvirt: LibvirtConnection | None = None,
    stop: Callable[[], bool] = lambda: False,
    allowance: Allowance | None = None,
    room: Room = lambda nid: None,
    progress: Progress = lambda guest, done, total: None,
    threads: ThreadCpus | None = None,
    sysfs: Path = SYSFS,
    sleep: Callable[[float], None] = time.sleep,
) -> UndoResult:
    """Undo all guests in the journal, or ``guests`` by whatever names it has them (then no sysctls).

    ``stop`` is asked before each call that moves pages, and each is within the ``allowance``, if there is
    one.  ``room`` is asked at least every 64 MiB: where a node is full, the kernel swaps others' memory out.
    What is not moved stays in the journal.  ``progress`` is called every 64 MiB, in pages of a guest.
    """
    named = None if guests is None else {one.key: one for one in guests}
    contents = journal.contents(None if named is None else named.values())
    left_behind.note_left_behind(proc)
    done: list[GuestUndo] = []
    failures: list[str] = []
    ended: list[str] = []
    for key, origins in contents.guests.items():
        if named is not None:
            if key not in named:
                continue
            origins.identity = named[key]
        vcpus = VcpusUndoing(libvirt, proc, sysfs, threads=threads or KernelCpus())
        undoing = _GuestUndoing(
            journal, origins, kernel or NativeKernel(), vcpus, proc, stop, allowance, room, progress, sleep
        )
        try:
            done.append(undoing.run(failures))
        except GuestGoneError:
            ended.append(origins.identity.name)
            _forget(journal, origins, failures)
    sysctls = []
    for taken in contents.sysctls.values() if guests is None else ():
        try:
            sysctls.append(restore_sysctl(journal, taken, proc))
        except VmplaceError as err:
            failures.append(str(err))
    return UndoResult(tuple(done), tuple(sysctls), tuple(failures), tuple(ended), journal.damage)


def _forget(journal: Journal, origins: GuestOrigins, failures: list[str]) -> None:
    """Settle a guest that ended, so that the next undo need not tell of it again."""
    try:
        journal.record_undone(origins.identity)
    except VmplaceError as err:
        failures.append(f"guest {origins.identity.name}: {err}")


class _GuestUndoing:
    """The undo of one guest while it runs."""

    def __init__(  # noqa: PLR0913
        self,
        journal: Journal,
        origins: GuestOrigins,
        kernel: MoveKernel,
        vcpus: VcpusUndoing,
        proc: Path,
        stop: Callable[[], bool],
        allowance: Allowance | None,
        room: Room,
        progress: Progress,
        sleep: Callable[[float], None],
    ) -> None:
        self._journal = journal
        self._origins = origins
        self._kernel = kernel
        self._proc = proc
        self._stop = stop
        self._allowance, self._room = allowance, room
        self._progress = progress
        self._sleep, self._paused_s = sleep, 0.0
        self._vcpus, self._counts = vcpus, vcpus.counts
        self._stuck: Counter[str] = Counter()
        self._sizes = BatchSizes()
        self._waits = CallWaits(origins.identity.pid)

    def run(self, failures: list[str]) -> GuestUndo:
        """Undo what can be undone and settle the journal; GuestGoneError if the guest ended."""
        identity = self._origins.identity
        try:
            if not is_alive(identity, self._proc):
                raise GuestGoneError("ended")
            if held.probe(identity.pid):
                raise HeldError
            pinned = self._vcpus.restore(self._origins.affinities.values(), failures)
            self._journal.record_undone(identity, list(self._restore_pages()), pinned)
        except GuestGoneError:
            raise
        except MemoryError:
            failures.append(f"guest {identity.name}: there is not enough memory for its pages: {MORE}")
        except Exception as err:
            # The other guests are undone all the same.
            failures.append(f"guest {identity.name}: {err}")
        offline = tuple(sorted(self._vcpus.offline))
        return GuestUndo(identity.name, **self._counts, stuck=dict(self._stuck), offline_cpus=offline)

    def _restore_pages(self) -> Iterator[PageOrigins]:
        """Move all pages home; yield those that did not go."""
        done, total = 0, self._origins.pages.total_pages
        for pages in self._origins.pages.iter_pages():
            if left := self._restore(pages):
                yield left
            done += len(pages.hva)
            self._progress(self._origins.identity.name, done, total)

    def _restore(self, pages: PageOrigins) -> PageOrigins | None:
        """Move the pages of one block home; return those that did not go."""
        if self._stop():
            # Finding out where the pages of a guest of a TiB are takes minutes by itself.
            self._stuck["stopped"] += len(pages.hva)
            return pages
        self._check()
        # Checked for each block: a large guest may take long on a busy host.
        self._waits = CallWaits(self._origins.identity.pid)
        pages = self._ours(pages)
        reasons: dict[int, str] = {}
        hva, nids = pages.hva, pages.nid
        for attempt in range(_ATTEMPTS):
            hva, nids = self._attempt(hva, nids, reasons, huge_first=attempt == 0)
            if not len(hva) or self._stop():
                break
        self._counts["restored"] += len(pages.hva) - len(hva)
        for nid in np.unique(nids).tolist():
            self._stuck[reasons.get(nid, "stopped")] += int(np.count_nonzero(nids == nid))
        return pages.where(np.isin(pages.hva, hva)) if len(hva) else None

    def _check(self) -> None:
        """Raise GuestGoneError unless the pid is that of the guest still: an undo may take minutes."""
        identity = self._origins.identity
        if read_start_time(identity.pid, self._proc) != identity.start_time:
            raise GuestGoneError("ended")

    def _ours(self, pages: PageOrigins) -> PageOrigins:
        """Return the pages that are where vmplace put them; count all others."""
        found = self._settled_nids(pages.hva)
        is_gone, is_home = found < 0, found == pages.nid
        is_ours = pages.are_ours(found) & ~is_home & ~is_gone
        for name, count in (("gone", is_gone), ("at_home", is_home)):
            self._counts[name] += int(np.count_nonzero(count))
        self._counts["others_pages"] += int(np.count_nonzero(~is_ours & ~is_home & ~is_gone))
        return pages.where(is_ours)

    def _attempt(
        self,
        hva: npt.NDArray[np.uint64],
        nids: npt.NDArray[np.int16],
        reasons: dict[int, str],
        *,
        huge_first: bool,
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int16]]:
        """Try all pages once; return those that are still away."""
        if huge_first:
            # A huge page moves whole by its head; asking for its 512 pages at once would find 511 busy.
            heads = whole_block_heads(hva, nids)
            self._move(hva[heads], nids[heads], self._sizes.huge, reasons)
            hva, nids = self._still_away(hva, nids)
        self._move(hva, nids, self._sizes.small, reasons)
        return self._still_away(hva, nids)

    def _fitting(
        self, pages: npt.NDArray[np.uint64], nid: int, each: int, reasons: dict[int, str]
    ) -> npt.NDArray[np.uint64]:
        """Return as many of the pages as there is room for on their node."""
        room_bytes = self._room(nid)
        if room_bytes is None or room_bytes >= len(pages) * each:
            return pages
        reasons[nid] = f"{NO_ROOM} {nid}: free memory there and undo again"
        return pages[: room_bytes // each]

    def _allowed(self, count: int, each: int) -> int:
        """Wait until ``count`` of ``each`` so many bytes may be moved, or fewer; return how many."""
        if self._allowance is None:
            return count
        granted = self._allowance.wait(count * each)
        self._allowance.refund(granted % each)
        return granted // each

    def _refund(
        self, pages: npt.NDArray[np.uint64], moved: npt.NDArray[np.bool_], nid: int, each: int
    ) -> None:
        """Take from the allowance only what moved: a head of 2 MiB may be a small page now."""
        if self._allowance is None:
            return
        moved_bytes = int(np.count_nonzero(moved)) * PAGE_BYTES
        if each == HUGE_BYTES:
            last = pages[moved] + np.uint64(HUGE_BYTES - PAGE_BYTES)
            moved_bytes += int(np.count_nonzero(self._nids(last) == nid)) * (HUGE_BYTES - PAGE_BYTES)
        self._allowance.refund(len(pages) * each - moved_bytes)

    def _move(
        self,
        hva: npt.NDArray[np.uint64],
        nids: npt.NDArray[np.int16],
        size: BatchSize,
        reasons: dict[int, str],
    ) -> None:
        each = HUGE_BYTES if size is self._sizes.huge else PAGE_BYTES
        for nid in np.unique(nids).tolist():
            pages = self._fitting(hva[nids == nid], nid, each, reasons)
            while len(pages) and not self._stop():
                count = self._allowed(min(size.pages, len(pages)), each)
                if not count:
                    return
                self._check()
                outcome = move_batch(self._kernel, self._origins.identity.pid, pages[:count], nid)
                size.took(min(count, len(pages)), outcome.duration_ns)
                self._refund(pages[:count], outcome.status == nid, nid, each)
                self._waits.add(outcome)
                errors = outcome.status[(outcome.status < 0) & (outcome.status != UNTRIED)]
                if outcome.error or len(errors):
                    reasons[nid] = errno_name(outcome.error or -int(errors[0]))
                if outcome.error:
                    break
                untried = pages[:count][outcome.status == UNTRIED]
                pages = np.concatenate((untried, pages[count:]))

    def _still_away(
        self, hva: npt.NDArray[np.uint64], nids: npt.NDArray[np.int16]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int16]]:
        found = self._settled_nids(hva)
        away = (found >= 0) & (found != nids)
        return hva[away], nids[away]

    def _nids(self, hva: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        return read_nids(self._kernel, self._origins.identity.pid, hva)

    def _settled_nids(self, hva: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        return read_settled_nids(self._kernel, self._origins.identity.pid, hva, self._pause)

    def _pause(self, seconds: float) -> None:
        """Wait for pages in flight, but not for those of each block of a TiB: most that are gone are gone."""
        if self._paused_s < MOST_PAUSED_S:
            self._paused_s += seconds
            self._sleep(seconds)


def whole_block_heads(hva: npt.NDArray[np.uint64], nids: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
    """Tell which of the ascending pages head a 2 MiB block that is all there and has one wanted node."""
    heads = np.zeros(len(hva), bool)
    first = np.flatnonzero(hva % np.uint64(HUGE_BYTES) == 0)
    first = first[first + _HUGE_PAGES <= len(hva)]
    last = first + _HUGE_PAGES - 1
    complete = hva[last] - hva[first] == HUGE_BYTES - PAGE_BYTES
    changes = np.concatenate(([0], np.cumsum(nids[1:] != nids[:-1]))) if len(nids) else np.zeros(0)
    heads[first[complete & (changes[first] == changes[last])]] = True
    return heads
