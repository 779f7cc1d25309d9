"""Which pages of a guest were touched?  Asked of the kernel's idle-page tracking.

1. arm: set the idle flags of the frames behind the guest's pages.
2. harvest: read the flags back; the kernel walks the folio's mappings then, and with them, through KVM's
   MMU notifier, the accessed bits of the guest's nested page tables.  A clear flag is a touch...
3. ...or a tail of a folio, whose flag is always clear: those take the answer of their folio's head.

Source: Documentation/admin-guide/mm/idle_page_tracking.rst; mm/page_idle.c (6.12).

Limits: one answer a folio, so a huge page is touched or not as a whole.  hugetlb pages are not tracked and
never count as touched.  Accessed bits are cleared without a TLB flush: a page that stays in a CPU's TLB
for a whole window looks idle.  A page touched first and marked last within one window counts for it.
"""

import os
import time
from functools import partial
from pathlib import Path

import numpy as np

from vmplace import native
from vmplace.errors import UnsupportedHostError
from vmplace.sampling.frame_nodes import Frames
from vmplace.sampling.idle_pieces import IdlePieces, usual_frame_ns
from vmplace.sampling.page_arrays import Bytes
from vmplace.sampling.page_frames import PAGES_PER_HUGE, FrameChunk
from vmplace.sampling.range_walk import RangeWalk
from vmplace.sampling.sample import SampleBatch, SourceCoverage
from vmplace.sampling.source import SourceSetup
from vmplace.topology.guest import GuestTopology

BITMAP = "kernel/mm/page_idle/bitmap"
DRAIN_EVERY_NS = 10**9
"""Emptying the per-CPU batches bothers every CPU of the host; all guests of a window share one."""


class IdleSource:
    """Accessed pages by idle-page tracking; exact for 4 KiB pages, per folio for larger ones."""

    name = "idle"
    coverage = SourceCoverage(accessed=True)

    def __init__(self, setup: SourceSetup) -> None:
        """Probe; raises UnsupportedHostError where tracking or frame numbers are missing."""
        self._nids = setup.host.nids
        self._walk = RangeWalk(self._nids, setup.sysfs, setup.proc, setup.beat, resolves=False)
        self._bitmap = -1
        try:
            self._bitmap = _open_bitmap(setup.sysfs)
            usual_ns = usual_frame_ns(self._bitmap, self._walk.frames.own_frames)
        except BaseException:
            self.close()
            raise
        self._pieces = IdlePieces(self._bitmap, usual_ns)
        self._armed_ns: dict[tuple[int, int], int] = {}
        self._drained_ns = -DRAIN_EVERY_NS

    def arm(self, guest: GuestTopology) -> None:
        """Mark all present pages of the guest idle; raises DearGuestError where that takes too long."""
        self._pieces.begin(guest)
        with self._walk.frames.opened(guest) as pagemap:
            self._drain()
            for ram in guest.ram:
                for chunk in self._walk.frames.chunks(pagemap, ram):
                    self._mark_head(guest, chunk)
                    # Marks of tails are ignored: no need to know the folios here.
                    pfns = np.sort(chunk.pfns) if _is_scattered(chunk.pfns) else chunk.pfns
                    self._pieces.mark(guest, pfns)
        self._armed_ns[guest.identity] = time.monotonic_ns()

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return the pages touched since ``arm``; raises ValueError for a guest that was not armed.

        Raises DearGuestError where that takes too long.
        """
        started_ns = self._armed_ns.pop(guest.identity, None)
        if started_ns is None:
            raise ValueError(f"guest {guest.name} was not armed")
        with self._walk.frames.opened(guest) as pagemap:
            touched = partial(self._touched, guest)
            ranges = tuple(self._walk.sample(guest, pagemap, ram, touched) for ram in guest.ram)
        ended_ns = time.monotonic_ns()
        return SampleBatch(guest.name, self.name, self.coverage, started_ns, ended_ns, self._nids, ranges)

    def forget(self, guest: GuestTopology) -> None:
        """Drop the guest's window; marks that are left harm nobody."""
        self._armed_ns.pop(guest.identity, None)
        self._pieces.forget(guest)

    def close(self) -> None:
        """Close the files."""
        self._walk.close()
        if self._bitmap >= 0:
            os.close(self._bitmap)
        self._bitmap = -1

    def _mark_head(self, guest: GuestTopology, chunk: FrameChunk) -> None:
        """Mark the folio that a range begins in the middle of: its head is in no chunk."""
        if not chunk.first and chunk.pfns[0] % PAGES_PER_HUGE:
            self._walk.frames.resolve(chunk.pfns[:1], chunk.heads[:1], np.ones(1, np.uint8))
            self._pieces.mark(guest, chunk.heads[:1])

    def _touched(self, guest: GuestTopology, chunk: FrameChunk, accessed: Bytes) -> None:
        if not _is_scattered(chunk.pfns):
            self._collect(guest, chunk.pfns, chunk.heads, accessed)
            return
        order = np.argsort(chunk.pfns)
        pfns, heads, answers = chunk.pfns[order], chunk.heads[order], accessed[order]
        self._collect(guest, pfns, heads, answers)
        chunk.pfns[order], chunk.heads[order], accessed[order] = pfns, heads, answers

    def _collect(self, guest: GuestTopology, pfns: Frames, heads: Frames, accessed: Bytes) -> None:
        self._pieces.collect(guest, pfns, accessed)
        # A frame that is idle is a head, for tails never are: only the others must be looked up.
        self._walk.frames.resolve(pfns, heads, accessed)
        accessed[heads == 0] = 0
        is_tail = heads != pfns
        if is_tail.any():
            answers = np.zeros(len(heads), np.uint8)
            self._pieces.collect(guest, heads * is_tail, answers)
            np.copyto(accessed, answers, where=is_tail)
            # A head that the guest gave back (balloon) is in no range, so ``arm`` never meets it.
            self._pieces.mark(guest, heads * (is_tail & (answers != 0)))

    def _drain(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._drained_ns >= DRAIN_EVERY_NS:
            native.drain_lru()
            self._drained_ns = now_ns


def _open_bitmap(sysfs: Path) -> int:
    try:
        return os.open(sysfs / BITMAP, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as err:
        raise UnsupportedHostError(
            "the kernel has no idle-page tracking", hint="boot a kernel with CONFIG_IDLE_PAGE_TRACKING"
        ) from err
    except OSError as err:
        raise UnsupportedHostError(
            f"{sysfs / BITMAP} cannot be opened: {err.strerror}",
            hint="run as root; the file must be writable",
        ) from err


def _is_scattered(pfns: Frames) -> bool:
    """Tell whether more than one page in 64 leaves the run of words before it (each costs a system call)."""
    words = (pfns >> np.uint64(6)).view(np.int64)
    return int(np.count_nonzero(np.abs(np.diff(words)) > 1)) > len(pfns) // 64
