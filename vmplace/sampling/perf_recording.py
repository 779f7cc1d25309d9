"""How does a file of ``perf record`` become host, guests and batches, as a recording of vmplace has them?

1. A process with threads "CPU N/KVM" (QEMU names them so under libvirt, or with -name debug-threads=on) is a
   guest; what these threads load and store is the guest's.
2. A sample has a host-physical address.  Which guest page that is the file does not say, so frames stand for
   pages: ``hva`` of a range is host-physical, ``base_gfn`` is None.  Frames near each other make up a range.
3. A frame's node follows from the memory blocks in the file's header.  A frame that no sample ever saw may be
   anybody's: it has no node.

Limits: a page that moved while it was recorded is two.  What the host's kernel touches on behalf of a vCPU
counts as the guest's.  Distances are not in the file: they are taken for the kernel's defaults.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from re import compile as regex

import numpy as np
import numpy.typing as npt

from vmplace.errors import RecordingError
from vmplace.sampling.page_arrays import Bits, NodeIndexes
from vmplace.sampling.page_frames import block_count
from vmplace.sampling.perf_script import (
    RECORD_HINT,
    RecordedHeader,
    RecordedSamples,
    read_header,
    read_samples,
)
from vmplace.sampling.recording_frames import MOST_NODES
from vmplace.sampling.sample import NodeBits, RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, Movability, RamRange, Vcpu
from vmplace.topology.host import HostTopology, Node

SOURCE = "perf"
COVERAGE = SourceCoverage(accessed=True, written=True, accessor_nid=True, sampled=True)
LOCAL_DISTANCE, REMOTE_DISTANCE = 10, 20
"""include/linux/topology.h: what the kernel takes without a SLIT."""
GAP_PAGES = 8192
"""Frames that are further from each other than 32 MiB are of different ranges."""
MEM_OP_STORE = 4
REASON = "frames of the host, as perf.data has them"

Ints = npt.NDArray[np.int64]
_VCPU = regex(r"CPU ([0-9]{1,5})/KVM")
MOST_WINDOWS = 100_000


@dataclass(frozen=True)
class _GuestSamples:
    """A guest and its samples: entries of one guest, ascending in time."""

    guest: GuestTopology
    times_ns: Ints
    frames: Ints
    rows: Ints
    stores: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PerfRecording:
    """What a file of ``perf record`` tells of a host and its guests."""

    host: HostTopology
    header: RecordedHeader
    samples: tuple[_GuestSamples, ...]

    @property
    def guests(self) -> tuple[GuestTopology, ...]:
        """Return the guests, ascending by pid."""
        return tuple(one.guest for one in self.samples)

    def iter_batches(self, window_ms: int) -> Iterator[SampleBatch]:
        """Yield a batch of each guest for each window, from the first sample to the last."""
        first = min(int(one.times_ns[0]) for one in self.samples)
        last = max(int(one.times_ns[-1]) for one in self.samples)
        if (last - first) // (window_ms * 10**6) >= MOST_WINDOWS:
            raise RecordingError(
                f"its samples span {(last - first) / 1e9:.0f} s", hint="take longer windows (window_ms)"
            )
        for start in range(first, last + 1, window_ms * 10**6):
            for one in self.samples:
                yield _batch(one, self.header, (start, start + window_ms * 10**6))

    def iter_events(self, window_ms: int) -> Iterator[HostTopology | GuestTopology | SampleBatch]:
        """Yield what ``iter_recording`` yields of a recording."""
        yield self.host
        yield from self.guests
        yield from self.iter_batches(window_ms)


def read_perf_data(path: Path) -> PerfRecording:
    """Read a file of ``perf record``; raises RecordingError where it lacks what is needed."""
    return perf_recording(read_header(path), read_samples(path))


def perf_recording(header: RecordedHeader, samples: RecordedSamples) -> PerfRecording:
    """Return the guests among the samples; raises RecordingError where there are none, or no nodes."""
    if not 0 < len(header.nodes) <= MOST_NODES or not header.block_bytes:
        raise RecordingError("it does not tell the nodes of its machine", hint=RECORD_HINT)
    guests = tuple(_guest_samples(pid, samples, header) for pid in _guest_pids(samples))
    sampled = tuple(one for one in guests if len(one.times_ns))
    if not sampled:
        raise RecordingError(
            "no thread in it is a vCPU's", hint="guests of libvirt name theirs; else -name debug-threads=on"
        )
    return PerfRecording(_host(header), header, sampled)


def _host(header: RecordedHeader) -> HostTopology:
    nodes = tuple(Node(one.nid, one.cpus, one.memory_bytes, one.free_bytes) for one in header.nodes)
    nids = [node.nid for node in nodes]
    return HostTopology(
        nodes, {(a, b): LOCAL_DISTANCE if a == b else REMOTE_DISTANCE for a in nids for b in nids}
    )


def _guest_pids(samples: RecordedSamples) -> list[int]:
    vcpu_tids = [tid for tid, comm in samples.comms.items() if _VCPU.fullmatch(comm)]
    return [int(pid) for pid in np.unique(samples.pids[np.isin(samples.tids, vcpu_tids)])]


def _guest_samples(pid: int, samples: RecordedSamples, header: RecordedHeader) -> _GuestSamples:
    tids = [int(tid) for tid in np.unique(samples.tids[samples.pids == pid])]
    vcpu_ids = {tid: int(m[1]) for tid in tids if (m := _VCPU.fullmatch(samples.comms[tid]))}
    frames = samples.phys_addrs // PAGE_BYTES
    # What lies in no memory block is a device's, like the local APIC.
    wanted = np.flatnonzero(np.isin(samples.tids, list(vcpu_ids)) & (_node_index(frames, header) >= 0))
    mine = wanted[np.argsort(samples.times_ns[wanted], kind="stable")]
    vcpus = (
        Vcpu(vcpu_id, tid, tuple(np.unique(samples.cpus[mine][samples.tids[mine] == tid]).tolist()))
        for tid, vcpu_id in vcpu_ids.items()
    )
    ordered = tuple(sorted(vcpus, key=lambda vcpu: vcpu.vcpu_id))
    guest = GuestTopology(f"pid-{pid}", pid, 0, "kvm", ordered, tuple(_ranges(frames[mine])))
    stores = (samples.data_srcs[mine] & MEM_OP_STORE) != 0
    return _GuestSamples(
        guest, samples.times_ns[mine], frames[mine], _rows(samples.cpus[mine], header), stores
    )


def _rows(cpus: Ints, header: RecordedHeader) -> Ints:
    """Return the row of each CPU's node; the last row is for CPUs of no node."""
    rows = np.full(len(cpus), len(header.nodes), np.int64)
    for at, node in enumerate(header.nodes):
        rows[np.isin(cpus, node.cpus)] = at
    return rows


def _ranges(frames: Ints) -> Iterator[RamRange]:
    distinct = np.unique(frames)
    for part in np.split(distinct, np.flatnonzero(np.diff(distinct) > GAP_PAGES) + 1):
        if not len(part):
            # numpy splits nothing into one part.
            continue
        first, npages = int(part[0]), int(part[-1] - part[0]) + 1
        yield RamRange(first * PAGE_BYTES, npages, None, PAGE_BYTES, Movability.MOVABLE, REASON)


def _batch(one: _GuestSamples, header: RecordedHeader, window: tuple[int, int]) -> SampleBatch:
    now = slice(*np.searchsorted(one.times_ns, window))
    ranges = tuple(_range_sample(ram, one, now, header) for ram in one.guest.ram)
    nids = tuple(node.nid for node in header.nodes)
    return SampleBatch(one.guest.name, SOURCE, COVERAGE, *window, nids, ranges)


def _range_sample(ram: RamRange, one: _GuestSamples, now: slice, header: RecordedHeader) -> RangeSample:
    first = ram.hva // PAGE_BYTES
    inside = (one.frames >= first) & (one.frames < first + ram.npages)
    seen = np.unique(one.frames[inside])
    of_window = inside[now]
    pages, rows = (one.frames[now] - first)[of_window], one.rows[now][of_window]
    stores = one.stores[now][of_window]
    touched = np.zeros(ram.npages, np.uint8)
    touched[pages] = 1
    node_index = np.full(ram.npages, -1, np.int8)
    node_index[seen - first] = _node_index(seen, header)
    shape = len(header.nodes) + 1, -(-ram.npages // 64)
    by_node = NodeBits(_bits(shape, rows, pages), _bits(shape, rows[stores], pages[stores]))
    return RangeSample(ram, touched, node_index, np.zeros(block_count(ram), np.uint8), by_node)


def _bits(shape: tuple[int, int], rows: Ints, pages: Ints) -> Bits:
    bits = np.zeros(shape, np.uint64)
    np.bitwise_or.at(bits, (rows, pages // 64), np.uint64(1) << (pages % 64).astype(np.uint64))
    return bits


def _node_index(frames: Ints, header: RecordedHeader) -> NodeIndexes:
    blocks = frames // (header.block_bytes // PAGE_BYTES)
    index = np.full(len(frames), -1, np.int8)
    for at, node in enumerate(header.nodes):
        index[np.isin(blocks, node.blocks)] = at
    return index
