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
from dataclasses import replace
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


class KvmSource:
    """Accessed and written pages by node; exact per 4 KiB page where they are mapped so."""

    name = "kvm"
    coverage = SourceCoverage(accessed=True, written=True, accessor_nid=True)

    def __init__(self, setup: SourceSetup) -> None:
        """Probe; raises UnsupportedHostError where KVM is not patched or has no accessed bits."""
        if ~probe_features() & (FEATURE_ROOTS | FEATURE_HARVEST):
            raise UnsupportedHostError(
                "KVM has no TDP MMU with accessed and dirty bits",
                hint="load kvm with tdp_mmu=1 (and eptad=1)",
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
        self._give_roots(guest, placement)
        for ram in guest.ram:
            self._bits(placement, ram, clear=True)
        self._early[guest.identity] = []
        self._armed_ns[guest.identity] = time.monotonic_ns()

    def read_early(self, guest: GuestTopology) -> None:
        """Read the bits of all ranges, by range, for the harvest; raises ValueError for a guest not armed."""
        started_ns = self._armed_ns.get(guest.identity)
        if started_ns is None:
            raise ValueError(f"guest {guest.name} was not armed")
        bits = [self._bits(self._placements[guest.identity], ram, clear=False) for ram in guest.ram]
        after_ns = time.monotonic_ns() - started_ns
        self._early[guest.identity].append(tuple(EarlyBits(after_ns, one.accessed) for one in bits))

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return what each node touched since ``arm``; raises ValueError for a guest that was not armed."""
        started_ns = self._armed_ns.pop(guest.identity, None)
        if started_ns is None:
            raise ValueError(f"guest {guest.name} was not armed")
        readings = self._early.pop(guest.identity)
        with self._walk.frames.opened(guest) as pagemap:
            bits = [self._bits(self._placements[guest.identity], ram, clear=False) for ram in guest.ram]
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

    def _give_roots(self, guest: GuestTopology, placement: Placement) -> None:
        info = placement.info()
        wanted = sum(1 << nid for nid in self._nids if nid < MOST_ROOTS) & info.nodes
        if info.root_nodes == wanted and guest.identity in self._placements:
            return
        try:
            placement.call(lambda fd: native.placement_roots(fd, wanted, True))
        except OSError as err:
            if err.errno == errno.EBUSY:
                raise owned_by_another(guest) from err
            # The guest is being migrated; or roots are there, and faults fill them.
            if err.errno not in {errno.EAGAIN, errno.ENOMEM}:
                raise

    def _bits(self, placement: Placement, ram: RamRange, *, clear: bool) -> NodeBits:
        shape = len(self._nids) + 1, -(-ram.npages // 64)
        accessed, written = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
        known = True
        for slot in placement.info().slots:
            start, stop = _overlap(slot, ram)
            for first in range(start, stop, PIECE_BYTES):
                self._beat()
                end = min(first + PIECE_BYTES, stop)
                gfn = slot.base_gfn + (first + ram.hva - slot.hva) // PAGE_BYTES
                span = gfn, (end - first) // PAGE_BYTES, first // PAGE_BYTES
                harvest = partial(
                    _harvested, span, self._rows, accessed.reshape(-1), written.reshape(-1), clear
                )
                known &= placement.call(harvest)
        return NodeBits(accessed, written if known else None)

    def _sample(self, guest: GuestTopology, pagemap: int, ram: RamRange, bits: NodeBits) -> RangeSample:
        touched = bits.anywhere(ram.npages)

        def fill(chunk: FrameChunk, accessed: Bytes) -> None:
            accessed[:] = touched[chunk.first : chunk.first + len(accessed)]

        before = self._places.before(guest, ram, np.logical_or.reduce(rows_of_pages(touched, ram, 0), axis=1))
        sample = self._walk.sample(guest, pagemap, ram, fill, before)
        nodes = BlockRows.of(rows_of_pages(sample.node_index, ram, UNKNOWN))
        return replace(sample, by_node=bits, nodes=nodes)


def _harvested(  # noqa: PLR0913 - the ioctl's arguments
    span: tuple[int, int, int], rows: Numbers, accessed: Bits, written: Bits, clear: bool, fd: int
) -> bool:
    return native.placement_harvest(fd, *span, rows, accessed, written, clear)


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
        # If it is held up, KVM takes them off with the descriptor, once it can.
        placement.close()
