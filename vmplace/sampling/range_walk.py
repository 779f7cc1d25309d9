"""Where are the pages of a range, and which of them are huge?  The part that all sensors share.

Limits: folios between 4 KiB and 2 MiB (multi-size THP) pass for small pages, though the kernel moves each as
a whole; ``vmplace doctor`` tells of hosts that have them.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vmplace import apart
from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.sampling.frame_nodes import SEVERAL, UNKNOWN, FrameNodes, Frames, read_frame_nodes
from vmplace.sampling.known_places import Before
from vmplace.sampling.page_arrays import Bytes, NodeIndexes
from vmplace.sampling.page_frames import (
    PAGES_PER_HUGE,
    FrameChunk,
    FrameReader,
    block_count,
    block_offset,
    huge_blocks,
)
from vmplace.sampling.sample import RangeSample
from vmplace.sampling.source import nothing
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, RamRange

Touched = Callable[[FrameChunk, Bytes], None]
"""Fills in which pages of a chunk were touched."""


class RangeWalk:
    """Walks guest ranges chunk by chunk; a sensor adds only what it knows."""

    def __init__(
        self,
        nids: tuple[int, ...],
        sysfs: Path,
        proc: Path,
        beat: Callable[[], None] = nothing,
        *,
        resolves: bool = True,
    ) -> None:
        """Raise UnsupportedHostError where frames cannot be read.

        Unless it ``resolves``, it is ``touched`` that fills in the heads of folios.
        """
        self._resolves = resolves
        self._nids = nids
        self._nodes = _frame_nodes(nids, sysfs)
        # Last, for it holds a descriptor, which nobody would close if another step failed.
        self.frames = FrameReader(proc, beat)

    def close(self) -> None:
        """Close the files; harmless when done twice."""
        self.frames.close()

    def sample(
        self,
        guest: GuestTopology,
        pagemap: int,
        ram: RamRange,
        touched: Touched,
        before: Before | None = None,
    ) -> RangeSample:
        """Return one range's pages as they are now; raises GuestGoneError once the process has ended.

        With ``before`` only blocks that are due are looked up.
        """
        accessed, (node_index, huge) = np.zeros(ram.npages, np.uint8), _start(ram, before)
        for chunk in self.frames.chunks(pagemap, ram, before.due if before else None):
            pages = slice(chunk.first, chunk.first + len(chunk.pfns))
            if self._resolves:
                self.frames.resolve_blocks(ram, chunk)
            touched(chunk, accessed[pages])
            node_index[pages] = self._node_index(guest, ram, chunk)
            blocks = huge_blocks(chunk, ram)
            first_block = (block_offset(ram) + chunk.first) // PAGES_PER_HUGE
            huge[first_block : first_block + len(blocks)] = blocks
        return RangeSample(ram, accessed, node_index, huge)

    def _node_index(self, guest: GuestTopology, ram: RamRange, chunk: FrameChunk) -> NodeIndexes:
        if self._nodes is None:
            index = np.where(chunk.pfns != 0, SEVERAL, UNKNOWN).astype(np.int8)
        else:
            index = self._nodes.node_index(chunk.pfns)
        asked = np.flatnonzero(index == SEVERAL)
        if len(asked):
            hvas = (asked + chunk.first).astype(np.uint64) * np.uint64(PAGE_BYTES) + np.uint64(ram.hva)
            index[asked] = _asked_node_index(guest, hvas, self._nids)
        return index


def _start(ram: RamRange, before: Before | None) -> tuple[NodeIndexes, Bytes]:
    if before is None:
        return np.full(ram.npages, UNKNOWN, np.int8), np.zeros(block_count(ram), np.uint8)
    first = block_offset(ram)
    pages = before.nodes.some(np.arange(block_count(ram))).reshape(-1).view(np.int8)
    return pages[first : first + ram.npages], before.huge.copy()


def _frame_nodes(nids: tuple[int, ...], sysfs: Path) -> FrameNodes | None:
    try:
        return read_frame_nodes(nids, sysfs)
    except UnsupportedHostError:
        # move_pages(2) is asked per page then: slower, as exact.
        return None


def _asked_node_index(guest: GuestTopology, hvas: Frames, nids: tuple[int, ...]) -> NodeIndexes:
    status = np.full(len(hvas), UNKNOWN, np.int32)
    try:
        apart.page_nids(guest.pid, hvas, status)
    except ProcessLookupError as err:
        raise GuestGoneError(f"guest {guest.name}: process {guest.pid} ended") from err
    index = np.full(len(hvas), UNKNOWN, np.int8)
    for at, nid in enumerate(nids):
        index[status == nid] = at
    return index
