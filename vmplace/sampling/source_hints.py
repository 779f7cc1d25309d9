"""Which vCPU touches which page, and where inside a huge page?  Asked of KVM's sampled hint faults.

1. arm: KVM makes random mappings of the guest's RAM fault on their next access, so many a second.
2. Each fault is a record of vCPU, node, address and kind of access, in a ring.
3. harvest: take the records out, and switch hint faults off.

Source: kvm-patches/, Documentation/virt/kvm/placement.rst there.

Limits: a sample.  A page without a record was not necessarily idle.  A page is recorded once per period
and node root however often it is touched, so records tell who shares a page, hardly how hot it is.
"""

import contextlib
import errno
import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vmplace.errors import UnsupportedHostError
from vmplace.sampling.hint_ring import MOST_SPANS, HintRing, Hints, Span
from vmplace.sampling.page_arrays import Bits, Bytes
from vmplace.sampling.page_frames import PAGES_PER_HUGE, FrameChunk, block_offset
from vmplace.sampling.range_walk import RangeWalk
from vmplace.sampling.sample import NodeBits, RangeSample, SampleBatch, SourceCoverage, VcpuHits
from vmplace.sampling.source import SourceSetup
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, RamRange
from vmplace.topology.placement import (
    FEATURE_HINTS,
    Placement,
    Slot,
    open_placement,
    owned_by_another,
    probe_features,
)

BUDGET_PER_S = 1000
"""Mappings to arm per second and guest; bench/kvm_guest_speed.py has what they cost."""
PERIOD_MS = 100
Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Armed:
    """What is held of a guest within a window; ``parts`` say where its RAM is in guest frames."""

    placement: Placement
    ring: HintRing
    parts: tuple[tuple["_Part", ...], ...]
    started_ns: int


@dataclass(frozen=True)
class _Part:
    """``npages`` guest frames from ``gfn`` are the pages of a RAM range from ``page``."""

    gfn: int
    npages: int
    page: int


class HintsSource:
    """Sampled accesses by vCPU; exact 4 KiB pages, also inside huge ones."""

    name = "hints"
    coverage = SourceCoverage(accessed=True, written=True, accessor_nid=True, accessor_vcpu=True)

    def __init__(self, setup: SourceSetup) -> None:
        """Probe; raises UnsupportedHostError where KVM has no hint faults."""
        if not probe_features() & FEATURE_HINTS:
            raise UnsupportedHostError("KVM has no hint faults", hint="boot a kernel built with kvm-patches/")
        self._nids = setup.host.nids
        self._proc = setup.proc
        self._walk = RangeWalk(self._nids, setup.sysfs, setup.proc, setup.beat)
        self._armed: dict[tuple[int, int], _Armed] = {}
        self.lost = 0

    def arm(self, guest: GuestTopology) -> None:
        """Arm hint faults in the guest's RAM; raises GuestGoneError, UnsupportedHostError."""
        self.forget(guest)
        placement = open_placement(guest, self._proc)
        try:
            slots = placement.info().slots
            parts = tuple(_parts(slots, ram) for ram in guest.ram)
            ring = _opened_ring(guest, placement, _spans(parts))
        except BaseException:
            placement.close()
            raise
        self._armed[guest.identity] = _Armed(placement, ring, parts, time.monotonic_ns())

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return what was recorded since ``arm``; raises ValueError for a guest that was not armed."""
        armed = self._armed.get(guest.identity)
        if armed is None:
            raise ValueError(f"guest {guest.name} was not armed")
        hints = armed.ring.drain()
        ended_ns = time.monotonic_ns()
        self.lost += armed.ring.lost
        self.forget(guest)
        with self._walk.frames.opened(guest) as pagemap:
            ranges = tuple(
                self._sample(guest, pagemap, ram, hints, parts)
                for ram, parts in zip(guest.ram, armed.parts, strict=True)
            )
        return SampleBatch(
            guest.name, self.name, self.coverage, armed.started_ns, ended_ns, self._nids, ranges
        )

    def forget(self, guest: GuestTopology) -> None:
        """Switch the guest's hint faults off."""
        if armed := self._armed.pop(guest.identity, None):
            _stop(armed)

    def close(self) -> None:
        """Switch all off; harmless when done twice."""
        for armed in self._armed.values():
            _stop(armed)
        self._armed.clear()
        self._walk.close()

    def _sample(
        self, guest: GuestTopology, pagemap: int, ram: RamRange, hints: Hints, parts: tuple[_Part, ...]
    ) -> RangeSample:
        pages = _pages(hints.gpas, parts)
        inside = pages >= 0
        hits = VcpuHits(pages[inside], hints.vcpus[inside], hints.written[inside])
        rows = _rows(hints.nids[inside], self._nids)
        sample = self._walk.sample(guest, pagemap, ram, _nothing)
        bits = _node_bits(ram, sample.huge, hits, rows, len(self._nids) + 1)
        text = np.unique(pages[inside & hints.fetched])
        return replace(sample, accessed=bits.anywhere(ram.npages), by_node=bits, by_vcpu=hits, text=text)


def _opened_ring(guest: GuestTopology, placement: Placement, spans: tuple[Span, ...]) -> HintRing:
    try:
        return HintRing(placement, spans, BUDGET_PER_S, PERIOD_MS)
    except OSError as err:
        if err.errno == errno.EBUSY:
            raise owned_by_another(guest) from err
        raise UnsupportedHostError(
            f"guest {guest.name}: no hint faults ({err.strerror})",
            hint="take hints out of `source` in vmplace.toml, or boot a kernel with them (docs/kernel.md)",
        ) from err


def _spans(parts: tuple[tuple[_Part, ...], ...]) -> tuple[Span, ...]:
    """Return what to sample: the largest parts, if the guest has more memslots than KVM takes spans."""
    spans = sorted((Span(part.gfn, part.npages) for of_ram in parts for part in of_ram), key=_size)
    return tuple(spans[-MOST_SPANS:])


def _size(span: Span) -> int:
    return span.npages


def _stop(armed: _Armed) -> None:
    # EIO: the VM is dead, and so are its mappings.
    try:
        with contextlib.suppress(OSError):
            armed.ring.close()
    finally:
        armed.placement.close()


def _parts(slots: tuple[Slot, ...], ram: RamRange) -> tuple[_Part, ...]:
    """Return where the range is in guest frames; SMM's view is left out."""
    found = []
    for slot in slots:
        first = max(slot.hva, ram.hva)
        end = min(slot.hva + slot.npages * PAGE_BYTES, ram.hva + ram.size_bytes)
        if first < end and not slot.as_id:
            gfn = slot.base_gfn + (first - slot.hva) // PAGE_BYTES
            found.append(_Part(gfn, (end - first) // PAGE_BYTES, (first - ram.hva) // PAGE_BYTES))
    return tuple(found)


def _pages(gpas: npt.NDArray[np.uint64], parts: tuple[_Part, ...]) -> Indexes:
    """Return the page of each address in the range, -1 for those of other ranges."""
    gfns = (gpas // np.uint64(PAGE_BYTES)).astype(np.int64)
    pages = np.full(len(gfns), -1, np.int64)
    for part in parts:
        inside = (gfns >= part.gfn) & (gfns < part.gfn + part.npages)
        pages[inside] = gfns[inside] - part.gfn + part.page
    return pages


def _rows(nids: npt.NDArray[np.int64], known: tuple[int, ...]) -> Indexes:
    """Return each node's row; the last one stands for all that are not known."""
    rows = np.full(len(nids), len(known), np.int64)
    for row, nid in enumerate(known):
        rows[nids == nid] = row
    return rows


def _nothing(chunk: FrameChunk, accessed: Bytes) -> None:
    """What was touched does not depend on frames."""


def _node_bits(ram: RamRange, huge: Bytes, hits: VcpuHits, rows: Indexes, count: int) -> NodeBits:
    shape = count, -(-ram.npages // 64)
    accessed, written = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
    for row in range(count):
        mine = rows == row
        _set_bits(accessed[row], _with_huge(ram, huge, hits.pages[mine]))
        _set_bits(written[row], _with_huge(ram, huge, hits.pages[mine & hits.written]))
    return NodeBits(accessed, written)


def _with_huge(ram: RamRange, huge: Bytes, pages: Indexes) -> Indexes:
    """Return the pages, and all pages of the huge ones among them: a huge page moves whole."""
    offset = block_offset(ram)
    blocks = np.unique((pages + offset) // PAGES_PER_HUGE)
    blocks = blocks[huge[blocks] != 0]
    whole = (blocks[:, None] * PAGES_PER_HUGE + np.arange(PAGES_PER_HUGE) - offset).ravel()
    united: Indexes = np.union1d(pages, whole[(whole >= 0) & (whole < ram.npages)])
    return united


def _set_bits(words: Bits, pages: Indexes) -> None:
    np.bitwise_or.at(words, pages // 64, np.uint64(1) << (pages % 64).astype(np.uint64))
