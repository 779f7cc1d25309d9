"""What stands in the JSON heads of a recording's frames?  docs/recording.md tells it field by field."""

from collections.abc import Mapping
from itertools import chain, pairwise
from typing import TypeAlias

import msgspec

from vmplace.errors import OutsideError
from vmplace.outside import MOST_BITS, MOST_ID, finite, printable, within
from vmplace.sampling.page_frames import block_count
from vmplace.sampling.sample import RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import MOST_VCPU_ID, PAGE_BYTES, GuestTopology, RamRange
from vmplace.topology.host import HostTopology, Node, NodeLink
from vmplace.topology.loaded_latency import LEAST_NS, MOST_NS, QUEUES

Pairs: TypeAlias = tuple[tuple[int, int, int], ...]
"""A mapping (from nid, to nid) -> value, as (from, to, value): JSON has no such keys."""


MOST_PAGES = 1 << 29
"""Of one guest: 2 TiB, whose batches are 1 GiB when unpacked, and what bits by node and samples take."""
MOST_BODY_BYTES = 4 << 30
"""Of a batch, when unpacked: 2 TiB with the bits of four nodes, read nine times."""
MOST_NODES = 127
"""An index of a node is a signed byte."""
MOST_RANGES = 4096
MOST_EARLY = 64
MOST_ENTRIES = 1 << 26
"""Samples of a range in one window."""
ENTRY_BYTES = 8
MOST_ADDRESS = 1 << 57


class HostFrame(msgspec.Struct, frozen=True, tag_field="kind", tag="host"):
    """The host as it was when the recording began."""

    nodes: tuple[Node, ...]
    distances: Pairs
    bandwidths: Pairs = ()
    latencies: Pairs = ()
    smt_siblings: dict[int, tuple[int, ...]] = {}
    idle_latencies: tuple[tuple[int, int, float], ...] = ()
    links: tuple[NodeLink, ...] = ()
    queue: float | None = None


class GuestFrame(msgspec.Struct, frozen=True, tag_field="kind", tag="guest"):
    """One guest, before its first batch and whenever it changed.

    ``begins``: nothing is known of its pages before the batch that follows, but for the ``handover`` of its
    last host (model/handover.py), if there is one.
    """

    guest: GuestTopology
    begins: bool = False
    handover: str = ""


class RangeArrays(msgspec.Struct, frozen=True):
    """Which arrays a source gave of a range beside its touched pages, and how long they are.

    ``node_rows``: bitmaps of who touched pages, 0: it sees no nodes; ``written_rows``: of who wrote, 0: it
    cannot tell.  ``early_ns``: when each early reading was made.  ``counted``, ``text``: how many entries,
    None: it cannot tell.
    """

    node_rows: int = 0
    written_rows: int = 0
    early_ns: tuple[int, ...] = ()
    counted: int | None = None
    text: int | None = None


class BatchFrame(msgspec.Struct, frozen=True, tag_field="kind", tag="batch"):
    """One window of one guest; the arrays of its ranges are the frame's body."""

    guest: str
    source: str
    coverage: SourceCoverage
    started_ns: int
    ended_ns: int
    nids: tuple[int, ...]
    ranges: tuple[RamRange, ...]
    arrays: tuple[RangeArrays, ...] = ()
    former: tuple[RangeArrays, ...] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="told")
    """What ``arrays`` was called at first; is read, and never written."""


class OldBatchFrame(msgspec.Struct, frozen=True, tag_field="kind", tag="batch"):
    """The same in format 1, which kept no nodes of touches."""

    guest: str
    source: str
    coverage: SourceCoverage = msgspec.field(name="sight")
    started_ns: int
    ended_ns: int
    nids: tuple[int, ...]
    ranges: tuple[RamRange, ...]

    @property
    def renewed(self) -> BatchFrame:
        """Return the frame as it is written now."""
        arrays = (RangeArrays(),) * len(self.ranges)
        return BatchFrame(
            self.guest, self.source, self.coverage, self.started_ns, self.ended_ns, self.nids, self.ranges,
            arrays,
        )  # fmt: skip


class PlannedGuest(msgspec.Struct, frozen=True):
    """What a policy knew of a guest beside its pages; ``settings`` as its policy says, without times.

    ``waits``: those of each of ``costs``; empty in recordings up to November 2026, as ``bound`` is: cells
    (None: other memory) and the nodes that their memory is bound to.  ``move_bytes``: what its own rate left,
    None: it has none, or the recording is older.  ``copied_bytes``: of its copies, None: nobody counted them.
    ``lar``: the share of its accesses that the CPU counted as local; None in older recordings, too.
    ``node_shares``: which nodes made them, in all windows that are remembered and in the newest; the same.
    """

    name: str
    settings: dict[str, object]
    dram_per_us: float | None = None
    cpus: float | None = None
    known_s: float = 0.0
    costs: tuple[tuple[float, float, float], ...] = ()
    may_change: bool = True
    waits: tuple[float | None, ...] = ()
    bound: tuple[tuple[int | None, tuple[int, ...]], ...] = ()
    move_bytes: int | None = None
    copied_bytes: int | None = None
    copies_wait: bool = False
    lar: float | None = None
    node_shares: tuple[tuple[float, ...], tuple[float, ...] | None] | None = None


class TieFrame(msgspec.Struct, frozen=True):
    """vCPUs of a process that an earlier agent had tied: their CPUs before, and since."""

    pid: int
    start_time: int
    before: dict[int, tuple[int, ...]]
    since: dict[int, tuple[int, ...]]


class RunFrame(msgspec.Struct, frozen=True, tag_field="kind", tag="run"):
    """What follows was decided about, by ``policy``; ``acted``: and that was carried out.

    ``ties``: those of an earlier agent.
    """

    policy: str
    acted: bool
    ties: tuple[TieFrame, ...] = ()


class PlanFrame(msgspec.Struct, frozen=True, tag_field="kind", tag="plan"):
    """A decision: what it was made with beside host, guests and batches; ``digest``: CRC-32 of the plan."""

    now_ns: float
    window_s: float
    budget_bytes: int | None
    replica_ratio: float
    huge_replicas: bool
    guests: tuple[PlannedGuest, ...]
    digest: int


Frame: TypeAlias = HostFrame | GuestFrame | BatchFrame | RunFrame | PlanFrame
OldFrame: TypeAlias = HostFrame | GuestFrame | OldBatchFrame


def host_frame(host: HostTopology) -> HostFrame:
    """Return the frame that tells ``host``."""
    return HostFrame(
        host.nodes,
        _pairs(host.distances),
        _pairs(host.bandwidths),
        _pairs(host.latencies),
        dict(host.smt_siblings),
        tuple((a, b, float(ns)) for (a, b), ns in host.idle_latencies.items()),
        host.links,
        host.queue,
    )


def host_of(frame: HostFrame) -> HostTopology:
    """Return the host that ``frame`` tells; raises OutsideError for one that cannot be."""
    nids = [within(node.nid, 0, MOST_ID, "a nid") for node in frame.nodes]
    if not nids or nids != sorted(set(nids)) or len(nids) > MOST_NODES:
        raise OutsideError("a host whose nodes are not listed one by one, ascending")
    for node in frame.nodes:
        _check_ids(node.cpus, MOST_ID)
        within(min(node.memory_bytes, node.free_bytes), 0, MOST_ADDRESS, "memory")
        within(max(node.memory_bytes, node.free_bytes), 0, MOST_ADDRESS, "memory")
    if {(a, b) for a, b, _ in frame.distances} != {(a, b) for a in nids for b in nids}:
        raise OutsideError("a host without the distances of all its nodes")
    for pairs in (frame.distances, frame.bandwidths, frame.latencies):
        if not {nid for a, b, _ in pairs for nid in (a, b)} <= set(nids):
            raise OutsideError("figures of nodes that the host does not have")
        for _, _, value in pairs:
            within(value, 1, MOST_BITS, "a figure between nodes")
    _check_calibrated(frame, nids)
    return HostTopology(
        frame.nodes,
        _mapping(frame.distances),
        frame.smt_siblings,
        _mapping(frame.bandwidths),
        _mapping(frame.latencies),
        idle_latencies={(a, b): ns for a, b, ns in frame.idle_latencies},
        links=frame.links,
        queue=frame.queue,
    )


def _check_calibrated(frame: HostFrame, nids: list[int]) -> None:
    """Raise OutsideError for what no calibration finds."""
    pairs = [tuple(sorted(link.nids)) for link in frame.links]
    if len(set(pairs)) < len(pairs) or not all(a != b and {a, b} <= {*nids} for a, b in pairs):
        raise OutsideError("links that are not one each of two of the host's nodes")
    for link in frame.links:
        within(link.bytes_per_s, 1, MOST_BITS, "the bandwidth of a link")
    for a, b, ns in frame.idle_latencies:
        if not {a, b} <= {*nids}:
            raise OutsideError("latencies of nodes that the host does not have")
        finite(ns, least=LEAST_NS, most=MOST_NS, what="a latency")
    if frame.queue is not None:
        finite(frame.queue, least=QUEUES[0], most=QUEUES[1], what="a queue")


def batch_frame(batch: SampleBatch) -> BatchFrame:
    """Return the head of the frame that tells ``batch``."""
    rams = tuple(sample.ram for sample in batch.ranges)
    arrays = tuple(_arrays_of(sample) for sample in batch.ranges)
    return BatchFrame(
        batch.guest, batch.source, batch.coverage, batch.started_ns, batch.ended_ns, batch.nids, rams, arrays
    )


def _arrays_of(sample: RangeSample) -> RangeArrays:
    bits, counted, text = sample.by_node, sample.counted, sample.text
    return RangeArrays(
        0 if bits is None else len(bits.accessed),
        0 if bits is None or bits.written is None else len(bits.written),
        () if bits is None else tuple(one.after_ns for one in bits.early),
        None if counted is None else len(counted.pages),
        None if text is None else len(text),
    )


def guest_of(frame: GuestFrame) -> GuestTopology:
    """Return the guest that ``frame`` tells; raises OutsideError for one that cannot be."""
    guest = frame.guest
    _check_ranges(guest.ram)
    for vcpu in guest.vcpus:
        within(vcpu.vcpu_id, 0, MOST_VCPU_ID, "a vCPU")
        _check_ids(vcpu.cpus, MOST_ID)
    return guest


def checked_batch(frame: BatchFrame) -> BatchFrame:
    """Return ``frame`` with a name that prints; raises OutsideError for a batch that cannot be."""
    _check_ranges(frame.ranges)
    within(frame.started_ns, 0, MOST_BITS, "the start of a window")
    within(frame.ended_ns, frame.started_ns, MOST_BITS, "the end of a window")
    _check_ids(frame.nids, MOST_ID)
    if not frame.nids or len(set(frame.nids)) < len(frame.nids) or len(frame.nids) > MOST_NODES:
        raise OutsideError("a batch whose nodes are not listed one by one")
    if frame.former is not msgspec.UNSET:
        frame = msgspec.structs.replace(frame, arrays=frame.former, former=msgspec.UNSET)
    if len(frame.arrays) != len(frame.ranges):
        raise OutsideError("a batch that does not tell what was seen of each of its ranges")
    rows = len(frame.nids) + 1
    for arrays in frame.arrays:
        if arrays.node_rows not in {0, rows} or arrays.written_rows not in {0, 1, rows}:
            raise OutsideError("a batch whose bitmaps are not of its nodes")
        within(len(arrays.early_ns), 0, MOST_EARLY if arrays.node_rows else 0, "the number of early readings")
        for before_ns, after_ns in pairwise((0, *arrays.early_ns)):
            within(after_ns, before_ns + 1, frame.ended_ns - frame.started_ns, "the time of an early reading")
        for entries in (arrays.counted or 0, arrays.text or 0):
            within(entries, 0, MOST_ENTRIES, "the number of samples")
    within(frame_body_bytes(frame), 0, MOST_BODY_BYTES, "the size of a batch")
    return msgspec.structs.replace(frame, guest=printable(frame.guest))


def checked_run(frame: RunFrame) -> RunFrame:
    """Return ``frame``; raises OutsideError for ties that cannot be."""
    for cpus in (some for tie in frame.ties for some in (tie.before, tie.since)):
        for vcpu_id, ids in cpus.items():
            within(vcpu_id, 0, MOST_VCPU_ID, "a vCPU")
            _check_ids(ids, MOST_ID)
    return frame


def checked_plan(frame: PlanFrame) -> PlanFrame:
    """Return ``frame``; raises OutsideError for a decision that cannot be."""
    figures = [frame.now_ns, frame.window_s, frame.replica_ratio]
    for one in frame.guests:
        figures += [one.dram_per_us or 0.0, one.cpus or 0.0, one.known_s]
        for share in (one.lar or 0.0, *chain(*(some or () for some in one.node_shares or ()))):
            finite(share, least=0, most=1, what="a share of accesses")
        figures += [figure for sample in one.costs for figure in sample]
        figures += [waits or 0.0 for waits in one.waits]
        within(one.move_bytes or 0, 0, MOST_BITS, "a budget")
        within(one.copied_bytes or 0, 0, MOST_BITS, "the size of copies")
        for cell, nids in one.bound:
            _check_ids((cell or 0, *nids), MOST_ID)
    for value in figures:
        finite(value, least=0, most=MOST_BITS, what="a figure of a decision")
    within(frame.budget_bytes or 0, 0, MOST_BITS, "a budget")
    return frame


def frame_body_bytes(frame: BatchFrame) -> int:
    """Return how long the arrays of a batch are."""
    return sum(range_bytes(ram, arrays) for ram, arrays in zip(frame.ranges, frame.arrays, strict=True))


def range_bytes(ram: RamRange, arrays: RangeArrays) -> int:
    """Return how long a range's arrays are: two bytes per page, one per 2 MiB block, bitmaps, entries."""
    rows = arrays.node_rows * (1 + len(arrays.early_ns)) + arrays.written_rows
    entries = ENTRY_BYTES * (2 * (arrays.counted or 0) + (arrays.text or 0))
    return 2 * ram.npages + block_count(ram) + rows * bitmap_bytes(ram) + entries


def bitmap_bytes(ram: RamRange) -> int:
    """Return how long a bit for each page is, in whole words."""
    return -(-ram.npages // 64) * 8


def _pairs(mapping: Mapping[tuple[int, int], int]) -> Pairs:
    return tuple((a, b, value) for (a, b), value in sorted(mapping.items()))


def _mapping(pairs: Pairs) -> dict[tuple[int, int], int]:
    return {(a, b): value for a, b, value in pairs}


def _check_ids(ids: tuple[int, ...], most: int) -> None:
    for one in ids:
        within(one, 0, most, "an id")


def _check_ranges(ranges: tuple[RamRange, ...]) -> None:
    """Raise OutsideError unless the ranges are apart, of whole pages, and of no more than MOST_PAGES."""
    within(len(ranges), 0, MOST_RANGES, "the number of ranges")
    end = 0
    for ram in sorted(ranges, key=lambda ram: ram.hva):
        within(ram.npages, 1, MOST_PAGES, "the pages of a range")
        within(ram.hva, end, MOST_ADDRESS, "the address of a range")
        if ram.hva % PAGE_BYTES:
            raise OutsideError(f"a range that begins at {ram.hva:#x}, within a page")
        within(ram.base_gfn or 0, 0, MOST_ADDRESS, "a frame of the guest")
        end = ram.hva + ram.size_bytes
    within(sum(ram.npages for ram in ranges), 0, MOST_PAGES, "the pages of a guest")
