"""Which frames and folios back a guest's pages now?  Read in chunks, so that memory stays bounded."""

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vmplace import held, native
from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.held import HeldError
from vmplace.sampling.frame_nodes import Frames
from vmplace.sampling.page_arrays import Bools, Bytes
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, GuestTopology, RamRange
from vmplace.topology.procfs import read_start_time

P = TypeVar("P", bound=np.generic)

PAGES_PER_HUGE = HUGE_BYTES // PAGE_BYTES
CHUNK_PAGES = 1 << 15
"""128 MiB of guest, 256 KiB per array of frames."""
SHORT_GAP = 16
"""Blocks: to read these in one go takes no longer than to stop and go on behind them."""

PRESENT = np.uint64(1 << 63)
PFN_MASK = np.uint64((1 << 55) - 1)


@dataclass(frozen=True)
class FrameChunk:
    """The frames of pages ``[first, first + len(pfns))`` of a range; the arrays are reused by the next chunk.

    ``pfns``: the page's frame, 0 where none.  ``heads``: the head of its folio, 0 where the idle bitmap never
    answers; filled in by ``FrameReader.resolve``.
    """

    first: int
    pfns: Frames
    heads: Frames


def block_offset(ram: RamRange) -> int:
    """Return the index of the range's first page within its 2 MiB block."""
    return ram.hva % HUGE_BYTES // PAGE_BYTES


def block_count(ram: RamRange) -> int:
    """Return how many 2 MiB blocks the range touches."""
    return -(-(block_offset(ram) + ram.npages) // PAGES_PER_HUGE)


def huge_blocks(chunk: FrameChunk, ram: RamRange) -> Bytes:
    """Return 1 for each 2 MiB block of the chunk (the first may be cut) that one huge page backs."""
    at = (block_offset(ram) + chunk.first) % PAGES_PER_HUGE
    starts = np.arange(0, at + len(chunk.pfns), PAGES_PER_HUGE) - at
    starts[0] = 0
    # Guests without folios are done here.
    if np.array_equal(chunk.pfns, chunk.heads):
        return np.zeros(len(starts), np.uint8)
    step = (np.arange(len(chunk.pfns), dtype=np.uint64) + np.uint64(at)) % np.uint64(PAGES_PER_HUGE)
    in_place = (chunk.heads != 0) & (chunk.pfns == chunk.heads + step)
    # A head alone proves nothing about the size of its folio, the far end of one does.
    is_tail = chunk.pfns != chunk.heads
    whole = np.logical_and.reduceat(in_place, starts) & np.logical_or.reduceat(is_tail, starts)
    aligned = chunk.heads[starts] % np.uint64(PAGES_PER_HUGE) == 0
    blocks: Bytes = (whole & aligned).astype(np.uint8)
    return blocks


def whole_blocks(pages: npt.NDArray[P], at: int) -> npt.NDArray[P]:
    """Return a view of the whole 2 MiB blocks in an array of pages; the first is page ``at`` of its block."""
    first = -at % PAGES_PER_HUGE
    count = max(len(pages) - first, 0) // PAGES_PER_HUGE
    return pages[first : first + count * PAGES_PER_HUGE].reshape(count, PAGES_PER_HUGE)


def _may_be_huge(blocks: Frames) -> Bools:
    """Tell which blocks have the first and the last frame that a huge page would have."""
    first, last = blocks[:, 0], blocks[:, -1]
    may_be: Bools = (
        (first != 0) & (first % PAGES_PER_HUGE == 0) & (last == first + np.uint64(PAGES_PER_HUGE - 1))
    )
    return may_be


def _runs(ram: RamRange, due: Bools | None) -> Iterator[tuple[int, int]]:
    """Yield the first page and the end of each run of blocks that are due; short gaps are read as well."""
    if due is None:
        yield 0, ram.npages
        return
    there, before = np.flatnonzero(due), block_offset(ram)
    for run in np.split(there, np.flatnonzero(np.diff(there) > SHORT_GAP) + 1):
        if len(run):
            first, end = (int(block) * PAGES_PER_HUGE - before for block in (run[0], run[-1] + 1))
            yield max(first, 0), min(end, ram.npages)


class FrameReader:
    """Reads /proc/PID/pagemap and /proc/kpageflags; the work arrays are allocated once."""

    def __init__(self, proc: Path = Path("/proc"), beat: Callable[[], None] = lambda: None) -> None:
        """Raise UnsupportedHostError where frames cannot be read.  ``beat`` is called with each chunk."""
        self._proc, self._beat = proc, beat
        self._pids: dict[int, int] = {}
        self._entries, self._pfns, self._heads = (np.zeros(CHUNK_PAGES, np.uint64) for _ in range(3))
        self._kpageflags = _open_kpageflags(proc)
        try:
            self._probe_pfns()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files; harmless when done twice."""
        if self._kpageflags >= 0:
            os.close(self._kpageflags)
        self._kpageflags = -1

    @contextmanager
    def opened(self, guest: GuestTopology) -> Iterator[int]:
        """Give a descriptor of the guest's pagemap; raises GuestGoneError if that process ended."""
        try:
            path = self._proc / f"{guest.pid}/pagemap"
            fd = held.opened(guest.pid, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except (FileNotFoundError, ProcessLookupError) as err:
            raise GuestGoneError(f"guest {guest.name}: process {guest.pid} ended") from err
        try:
            # Open first, then compare: so the descriptor belongs to the process that was compared.
            if read_start_time(guest.pid, self._proc) != guest.start_time:
                raise GuestGoneError(f"guest {guest.name}: pid {guest.pid} is another process now")
            self._pids[fd] = guest.pid
            yield fd
        finally:
            self._pids.pop(fd, None)
            os.close(fd)

    def chunks(self, pagemap_fd: int, ram: RamRange, due: Bools | None = None) -> Iterator[FrameChunk]:
        """Yield the frames of a range, or of its blocks that are due, chunk by chunk.

        All but the first chunk of the range start at a 2 MiB border.
        """
        for first, end in _runs(ram, due):
            at = first
            while at < end:
                border = at + CHUNK_PAGES - (block_offset(ram) + at) % PAGES_PER_HUGE
                yield self.read(pagemap_fd, ram, at, min(border, end) - at)
                at = border

    def read(self, pagemap_fd: int, ram: RamRange, first: int, npages: int) -> FrameChunk:
        """Read the frames of at most CHUNK_PAGES pages; raises GuestGoneError once the process has ended."""
        self._beat()
        entries, pfns, heads = (array[:npages] for array in (self._entries, self._pfns, self._heads))
        pid, hva = self._pids.get(pagemap_fd, 0), ram.hva + first * PAGE_BYTES
        try:
            count = held.bounded_on(pid, pagemap_fd, lambda fd: native.read_pagemap(fd, hva, entries))
        except HeldError:
            # A read that was given up may still write into the array.
            self._entries = np.zeros(CHUNK_PAGES, np.uint64)
            raise
        if count < npages:
            raise GuestGoneError(f"the process ended, or has no memory at {ram.hva:#x} any more")
        np.bitwise_and(entries, PFN_MASK, out=pfns)
        # Entries of swapped pages hold the swap slot in place of the frame.
        pfns[entries < PRESENT] = 0
        return FrameChunk(first, pfns, heads)

    def resolve(self, pfns: Frames, heads: Frames, asked: Bytes) -> None:
        """Fill in the heads of the pages ``asked`` for (not 0); the others are taken for heads.

        Drops frames that are no guest's own (zero page) from ``pfns``, of those that were asked for.
        """
        wanted = pfns * asked
        native.folio_heads(self._kpageflags, wanted, heads)
        pfns[(asked != 0) & (wanted == 0)] = 0
        np.copyto(heads, pfns, where=asked == 0)

    def resolve_blocks(self, ram: RamRange, chunk: FrameChunk) -> None:
        """Fill in the heads of huge pages; all others are taken for heads.  Drops frames of zero pages.

        Only a block whose frames begin and end like those of a huge page is looked up.
        """
        chunk.pfns[chunk.pfns == np.uint64(self._zero_pfn)] = 0
        np.copyto(chunk.heads, chunk.pfns)
        at = (block_offset(ram) + chunk.first) % PAGES_PER_HUGE
        blocks, heads = whole_blocks(chunk.pfns, at), whole_blocks(chunk.heads, at)
        likely = _may_be_huge(blocks)
        pfns = blocks[likely].reshape(-1)
        found = np.empty_like(pfns)
        native.folio_heads(self._kpageflags, pfns, found)
        blocks[likely], heads[likely] = pfns.reshape(-1, PAGES_PER_HUGE), found.reshape(-1, PAGES_PER_HUGE)

    def own_frames(self, hva: int, npages: int) -> Frames:
        """Return the frames of this process' own pages."""
        entries = np.zeros(npages, np.uint64)
        fd = os.open(self._proc / "self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            native.read_pagemap(fd, hva, entries)
        finally:
            os.close(fd)
        return entries & PFN_MASK

    def _probe_pfns(self) -> None:
        """Find the zero page's frame; one that was never written has it.

        Without the capability the kernel shows frame 0 for all (fs/proc/task_mmu.c, 4.2).
        """
        page = mmap.mmap(-1, PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        fd = os.open(self._proc / "self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # To read it is what maps it.
            page.read(1)
            self._zero_pfn = self._frame_of(fd, page)
        finally:
            os.close(fd)
        if not self._zero_pfn:
            raise UnsupportedHostError(
                "/proc/PID/pagemap hides frame numbers", hint="run as root, or with CAP_SYS_ADMIN"
            )

    def _frame_of(self, pagemap_fd: int, page: mmap.mmap) -> int:
        native.read_pagemap(pagemap_fd, np.frombuffer(page, np.uint8).ctypes.data, self._entries[:1])
        return int(self._entries[0] & PFN_MASK)


def _open_kpageflags(proc: Path) -> int:
    try:
        return os.open(proc / "kpageflags", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as err:
        raise UnsupportedHostError(
            "/proc/kpageflags does not exist", hint="boot a kernel with CONFIG_PROC_PAGE_MONITOR"
        ) from err
    except PermissionError as err:
        raise UnsupportedHostError(
            "/proc/kpageflags cannot be opened", hint="run as root, or with CAP_SYS_ADMIN"
        ) from err
