"""Which node read and wrote which page?  Asked of the accessed and dirty bits of KVM's node roots.

1. The first arm gives each node of the guest's host a root of its own, filled with what is mapped already.
   They go when this program ends, and while the guest is migrated: touches have no node then.
2. arm: clear the bits and flush the TLBs, so that whoever touches a page from now on sets them.
3. read_early: read them, and clear nothing.  It needs no flush, and descends only to page tables with a touch
   since 2, so that it costs less than 4.
4. harvest: read them.  A root is used by the vCPUs on its node alone: its bits are what this node did.

Source: kvm-patches/, Documentation/virt/kvm/placement.rst there.

Limits: only what vCPUs do is seen, not what the VMM or vhost do.  Pages mapped huge are answered for as a
whole.  vCPUs on a node without a root (31 nodes can have one) have no node.  Where a page is that nobody
touches may be known up to 16 windows late (known_places.py).
"""

import contextlib
import errno
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.errors import UnsupportedHostError
from vmplace.held import HeldError
from vmplace.sampling.block_rows import BlockRows, rows_of_pages
from vmplace.sampling.frame_nodes import UNKNOWN
from vmplace.sampling.known_places import KnownPlaces
from vmplace.sampling.page_arrays import Bytes
from vmplace.sampling.page_frames import FrameChunk
from vmplace.sampling.range_walk import RangeWalk
from vmplace.sampling.sample import EarlyBits, NodeBits, RangeSample, SampleBatch, SourceCoverage
from vmplace.sampling.source import SourceSetup
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, RamRange
from vmplace.topology.placement import (
    CURE,
    FEATURE_HARVEST,
    FEATURE_ROOTS,
    TDP_MMU_CURE,
    Placement,
    Slot,
    open_placement,
    owned_by_another,
    probe_features,
)

Bits = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]
MOST_ROOTS = 31
PIECE_BYTES = 16 << 30
"""What is harvested in one go: seconds, on a slow host."""
MOST_PIECES = 256
"""In one go, too: a VMM may have many thousands of memslots, of a page each."""


class KvmSource:
    """Accessed and written pages by node; exact per 4 KiB page where they are mapped so."""

    name = "kvm"
    coverage = SourceCoverage(accessed=True, written=True, accessor_nid=True)

    def __init__(self, setup: SourceSetup) -> None:
        """Probe; raises UnsupportedHostError where KVM is not patched or has no accessed bits."""
        if ~probe_features() & (FEATURE_ROOTS | FEATURE_HARVEST):
            raise UnsupportedHostError(
                "KVM has no TDP MMU with accessed and dirty bits",
                hint=TDP_MMU_CURE,
            )
        self._nids = setup.host.nids
        self._rows = np.array(self._nids, np.int32)
        self._proc, self._beat = setup.proc, setup.beat
        self._walk = RangeWalk(self._nids, setup.sysfs, setup.proc, setup.beat)
        self._places = KnownPlaces()
        self._placements: dict[tuple[int, int], Placement] = {}
        self._armed_ns: dict[tuple[int, int], int] = {}
        self._early: dict[tuple[int, int], list[tuple[EarlyBits, ...]]] = {}

    def arm(self, guest: GuestTopology) -> None:
        """Give the guest node roots if it has none, and take all bits off."""
        placement = self._placements.get(guest.identity) or self._start(guest)
        slots = self._give_roots(guest, placement)
        self._bits(placement, slots, guest.ram, clear=True)
        self._early[guest.identity] = []
        self._armed_ns[guest.identity] = time.monotonic_ns()

    def read_early(self, guest: GuestTopology) -> None:
        """Read the bits of all ranges, by range, for the harvest; raises ValueError for a guest not armed."""
        started_ns = self._armed_ns.get(guest.identity)
        if started_ns is None:
            raise ValueError(f"guest {guest.name} was not armed")
        bits = self._read(guest)
        after_ns = time.monotonic_ns() - started_ns
        self._early[guest.identity].append(tuple(EarlyBits(after_ns, one.accessed) for one in bits))

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return what each node touched since ``arm``; raises ValueError for a guest that was not armed."""
        started_ns = self._armed_ns.pop(guest.identity, None)
        if started_ns is None:
            raise ValueError(f"guest {guest.name} was not armed")
        readings = self._early.pop(guest.identity)
        with self._walk.frames.opened(guest) as pagemap:
            bits = self._read(guest)
            ended_ns = time.monotonic_ns()
            bits = [
                replace(one, early=tuple(reading[number] for reading in readings))
                for number, one in enumerate(bits)
            ]
            ranges = tuple(
                self._sample(guest, pagemap, ram, of_ram) for ram, of_ram in zip(guest.ram, bits, strict=True)
            )
        self._places.note(guest, ranges)
        return SampleBatch(guest.name, self.name, self.coverage, started_ns, ended_ns, self._nids, ranges)

    def moved(self, guest: GuestTopology, hva: npt.NDArray[np.uint64]) -> None:
        """Look these pages up in the next window."""
        self._places.moved(guest, hva)

    def look_again(self) -> None:
        """Look all pages up in the next window."""
        self._places.forget()

    def forget(self, guest: GuestTopology) -> None:
        """Take the roots off, if the guest is still there."""
        self._armed_ns.pop(guest.identity, None)
        self._early.pop(guest.identity, None)
        self._places.forget(guest)
        if placement := self._placements.pop(guest.identity, None):
            _stop(placement)

    def close(self) -> None:
        """Take all roots off."""
        for placement in self._placements.values():
            with contextlib.suppress(HeldError):
                _stop(placement)
        self._placements.clear()
        self._walk.close()

    def _start(self, guest: GuestTopology) -> Placement:
        placement = open_placement(guest, self._proc)
        try:
            if not placement.info().features & FEATURE_HARVEST:
                raise UnsupportedHostError(f"guest {guest.name}: its VM has no accessed bits", hint=CURE)
            self._give_roots(guest, placement)
        except BaseException:
            placement.close()
            raise
        self._placements[guest.identity] = placement
        return placement

    def _give_roots(self, guest: GuestTopology, placement: Placement) -> tuple[Slot, ...]:
        """Give the guest roots, if it has none; return its slots."""
        info = placement.info()
        wanted = sum(1 << nid for nid in self._nids if nid < MOST_ROOTS) & info.nodes
        if info.root_nodes == wanted and guest.identity in self._placements:
            return info.slots
        try:
            placement.call(lambda fd: native.placement_roots(fd, wanted, True))
        except OSError as err:
            if err.errno == errno.EBUSY:
                raise owned_by_another(guest) from err
            # The guest is being migrated; or roots are there, and faults fill them.
            if err.errno not in {errno.EAGAIN, errno.ENOMEM}:
                raise
        return info.slots

    def _read(self, guest: GuestTopology) -> list[NodeBits]:
        placement = self._placements[guest.identity]
        return self._bits(placement, placement.info().slots, guest.ram, clear=False)

    def _bits(
        self, placement: Placement, slots: tuple[Slot, ...], ranges: tuple[RamRange, ...], *, clear: bool
    ) -> list[NodeBits]:
        """Return the bits of the ranges.

        Ranges are harvested together, in portions: a call costs more than most of them (held.py).
        """
        shapes = [(len(self._nids) + 1, -(-ram.npages // 64)) for ram in ranges]
        # Each by itself: of early readings one of the two is kept.
        tables = [(np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)) for shape in shapes]
        known = [True] * len(ranges)
        for pieces in _portions(_iter_pieces(slots, ranges)):
            self._beat()
            answers = placement.call(partial(_harvested, pieces, tables, self._rows, clear))
            for piece, is_known in zip(pieces, answers, strict=True):
                known[piece.number] &= is_known
        return [
            NodeBits(accessed, written if is_known else None)
            for (accessed, written), is_known in zip(tables, known, strict=True)
        ]

    def _sample(self, guest: GuestTopology, pagemap: int, ram: RamRange, bits: NodeBits) -> RangeSample:
        touched = bits.anywhere(ram.npages)

        def fill(chunk: FrameChunk, accessed: Bytes) -> None:
            accessed[:] = touched[chunk.first : chunk.first + len(accessed)]

        before = self._places.before(guest, ram, np.logical_or.reduce(rows_of_pages(touched, ram, 0), axis=1))
        sample = self._walk.sample(guest, pagemap, ram, fill, before)
        nodes = BlockRows.of(rows_of_pages(sample.node_index, ram, UNKNOWN))
        return replace(sample, by_node=bits, nodes=nodes)


@dataclass(frozen=True)
class _Piece:
    """Guest frames to harvest: ``npages`` from ``gfn``, which are those from ``page`` of range ``number``."""

    number: int
    gfn: int
    npages: int
    page: int


def _iter_pieces(slots: tuple[Slot, ...], ranges: tuple[RamRange, ...]) -> Iterator[_Piece]:
    """Yield the frames of all ranges, PIECE_BYTES at most each."""
    begins = np.array([slot.hva for slot in slots], np.uint64)
    ends = np.array([slot.hva + slot.npages * PAGE_BYTES for slot in slots], np.uint64)
    for number, ram in enumerate(ranges):
        # Not one by one: a VMM may have many thousands of both.
        near = (begins < ram.hva + ram.size_bytes) & (ends > ram.hva)
        for slot in (slots[at] for at in np.flatnonzero(near).tolist()):
            start, stop = _overlap(slot, ram)
            for first in range(start, stop, PIECE_BYTES):
                end = min(first + PIECE_BYTES, stop)
                gfn = slot.base_gfn + (first + ram.hva - slot.hva) // PAGE_BYTES
                yield _Piece(number, gfn, (end - first) // PAGE_BYTES, first // PAGE_BYTES)


def _portions(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Yield the pieces in lists of PIECE_BYTES and MOST_PIECES at most: all of a small guest at once."""
    some: list[_Piece] = []
    npages = 0
    for piece in pieces:
        npages += piece.npages
        if some and (npages * PAGE_BYTES > PIECE_BYTES or len(some) == MOST_PIECES):
            yield some
            some, npages = [], piece.npages
        some.append(piece)
    if some:
        yield some


def _harvested(
    pieces: list[_Piece], tables: list[tuple[Bits, Bits]], rows: Numbers, clear: bool, fd: int
) -> list[bool]:
    """Fill the tables of the pieces' ranges; return whether writes to each piece are known."""
    answers = []
    for one in pieces:
        accessed, written = (table.reshape(-1) for table in tables[one.number])
        answers.append(
            native.placement_harvest(fd, one.gfn, one.npages, one.page, rows, accessed, written, clear)
        )
    return answers


def _overlap(slot: Slot, ram: RamRange) -> tuple[int, int]:
    """Return the part of the range that the slot maps, in bytes from its start; SMM's view is left out."""
    if slot.as_id:
        return 0, 0
    first = max(slot.hva, ram.hva)
    return first - ram.hva, min(slot.hva + slot.npages * PAGE_BYTES, ram.hva + ram.size_bytes) - ram.hva


def _stop(placement: Placement) -> None:
    # EIO: the VM is dead, and so are its roots.
    try:
        with contextlib.suppress(OSError):
            placement.call(lambda fd: native.placement_roots(fd, 0, True))
    finally:
        # If the VMM blocks this, KVM removes them when the descriptor is closed.
        placement.close()
