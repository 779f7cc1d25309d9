"""Which pages of a guest were touched?  Asked of AMD's Instruction-Based Sampling, from the host.

1. One ibs_op event on each CPU samples every so many ops, whoever runs there: guests, too.  CPUs since Zen 4
   leave out those that do not reach memory.
2. A sample of a load or store has the host-physical address.  Its frame is looked up among those that back
   the guest's pages now; its CPU's node touched the page, and a store wrote it.
3. Hits of the L1 count like accesses to DRAM, as they stand for what a prefetcher brought; hits of other
   caches do not.  What served the vCPUs' accesses, and how long that took, is counted apart.

Source: AMD64 Architecture Programmer's Manual, volume 2, chapter 13; arch/x86/events/amd/ibs.c (6.12);
Carrefour (ASPLOS'13), section 3.3.1, of L1 hits.

Limits: samples are rare.  A page without one was not necessarily idle, so this ranks hot pages, and says
nothing of cold ones.  A page that moved within the window is looked for at its new frame.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vmplace.errors import UnsupportedHostError
from vmplace.outside import lines, read_text, read_whole
from vmplace.sampling.frame_nodes import Frames
from vmplace.sampling.ibs_period import LOW_RATE_PERIOD, SampleCost, next_period
from vmplace.sampling.page_arrays import Bytes, NodeIndexes
from vmplace.sampling.page_frames import FrameChunk
from vmplace.sampling.perf_rings import DISABLE, ENABLE, PerfRings
from vmplace.sampling.range_walk import RangeWalk
from vmplace.sampling.sample import NodeBits, NodeHits, RangeSample, SampleBatch, SourceCoverage
from vmplace.sampling.sampled_frames import Found, SampledFrames, add_bits, touched_by_row
from vmplace.sampling.served import Served, ServedTally, served_by
from vmplace.sampling.source import SourceSetup
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, Identity, RamRange
from vmplace.topology.host import HostTopology

PMU = "bus/event_source/devices/ibs_op"
COUNT_OPS = 1 << 19
"""IBS_OP_CNT_CTL: count dispatched ops, not cycles; a stalled CPU is not sampled more for it."""
L3_MISS_ONLY = 1 << 16
"""IBS_OP_L3MISSONLY, CPUs since Zen 4: only accesses that reach memory are worth an interrupt."""
MEM_OP_STORE = np.uint64(4)
"""PERF_MEM_OP_STORE in union perf_mem_data_src (linux/perf_event.h)."""


class IbsSource:
    """Sampled loads and stores of all CPUs; counts what the kernel lost."""

    name = "ibs"
    coverage = SourceCoverage(accessed=True, written=True, accessor_nid=True, sampled=True)

    def __init__(self, setup: SourceSetup) -> None:
        """Probe; raises UnsupportedHostError where the PMU, the permission or frame numbers are missing."""
        self._nids = setup.host.nids
        try:
            pmu_type = read_whole(setup.sysfs / PMU / "type")
        except FileNotFoundError as err:
            raise UnsupportedHostError(
                "no ibs_op PMU", hint="only AMD hosts have it; a hypervisor hides it"
            ) from err
        self._walk = RangeWalk(self._nids, setup.sysfs, setup.proc, setup.beat)
        self._cpus = [cpu for node in setup.host.nodes for cpu in node.cpus]
        self._vmstat = setup.proc / "vmstat"
        self.period = LOW_RATE_PERIOD
        try:
            self._rings = PerfRings(pmu_type, event_config(setup.sysfs), self.period, self._cpus)
        except UnsupportedHostError:
            self._walk.close()
            raise
        self._rows = _rows_of_cpus(setup.host)
        self._armed: dict[Identity, tuple[int, list[Found]]] = {}
        self._tallies: dict[Identity, ServedTally] = {}
        self._window = _Window(0, 0, 0)
        self.lost = 0
        self.throttled = 0

    def arm(self, guest: GuestTopology) -> None:
        """Sample on behalf of this guest, too."""
        with self._walk.frames.opened(guest):
            if self._armed:
                self._drain()
            else:
                self._start()
        self._armed[guest.identity] = time.monotonic_ns(), []
        self._tallies[guest.identity] = ServedTally(tuple(vcpu.tid for vcpu in guest.vcpus))

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return the pages sampled since ``arm``; raises ValueError for a guest that was not armed."""
        if guest.identity not in self._armed:
            raise ValueError(f"guest {guest.name} was not armed")
        self._drain()
        started_ns, found = self._armed[guest.identity]
        ended_ns = time.monotonic_ns()
        served = self._tallies[guest.identity].total(self.period, ended_ns - started_ns)
        self.forget(guest)
        sampled = SampledFrames.of(found)
        with self._walk.frames.opened(guest) as pagemap:
            ranges = tuple(self._sample(guest, pagemap, ram, sampled) for ram in guest.ram)
        return SampleBatch(
            guest.name, self.name, self.coverage, started_ns, ended_ns, self._nids, ranges, served
        )

    def forget(self, guest: GuestTopology) -> None:
        """Drop the guest's window; with the last one sampling stops."""
        self._tallies.pop(guest.identity, None)
        if self._armed.pop(guest.identity, None) and not self._armed:
            self._stop()

    def close(self) -> None:
        """Take the events off, close the files."""
        self._rings.close()
        self._walk.close()

    def _sample(
        self, guest: GuestTopology, pagemap: int, ram: RamRange, sampled: SampledFrames
    ) -> RangeSample:
        shape = len(self._nids) + 1, -(-ram.npages // 64)
        bits = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
        hits: list[NodeHits] = []

        def fill(chunk: FrameChunk, accessed: Bytes) -> None:
            found = sampled.hits(chunk)
            hits.append(NodeHits(found.pages + chunk.first, found.rows))
            if len(found.pages):
                by_row = touched_by_row(chunk, found, len(self._nids) + 1)
                accessed[by_row[0].any(axis=0)] = 1
                for words, touched in zip(bits, by_row, strict=True):
                    add_bits(words, touched, chunk.first)

        sample = self._walk.sample(guest, pagemap, ram, fill)
        return replace(sample, by_node=NodeBits(*bits), counted=NodeHits.joined(hits))

    def _start(self) -> None:
        self._window = _Window(time.monotonic_ns(), 0, _migrated_pages(self._vmstat))
        self._rings.control(ENABLE)

    def _drain(self) -> None:
        for part in self._rings.drain():
            self.lost += part.lost
            self.throttled += part.throttled
            self._window.samples += len(part.phys_addrs)
            served = served_by(part.data_srcs)
            for tally in self._tallies.values():
                tally.add(served, part.latencies, part.tids)
            frames = _touched_frames(part.phys_addrs, served)
            rows = self._rows[np.minimum(part.cpus, len(self._rows) - 1).view(np.int64)]
            for _, found in self._armed.values():
                found.append((frames, rows, (part.data_srcs & MEM_OP_STORE) != 0))

    def _stop(self) -> None:
        self._rings.control(DISABLE)
        window_ns = time.monotonic_ns() - self._window.started_ns
        cost = SampleCost(self._window.samples, window_ns, self.period, len(self._cpus))
        acted = _migrated_pages(self._vmstat) != self._window.migrated_pages
        period = next_period(cost, acted=acted)
        if period != self.period:
            self._rings.set_period(period)
            self.period = period


def event_config(sysfs: Path) -> int:
    """Return how to sample: by ops, and only those that miss the L3 where the CPU can tell."""
    can_filter = (sysfs / PMU / "format/l3missonly").exists()
    return COUNT_OPS | (L3_MISS_ONLY if can_filter else 0)


@dataclass
class _Window:
    """From the first guest that is armed to the last that is harvested."""

    started_ns: int
    samples: int
    migrated_pages: int


def _rows_of_cpus(host: HostTopology) -> NodeIndexes:
    """Return each CPU's row, that of its node; the last entry stands for all other CPUs."""
    rows = np.full(max(cpu for node in host.nodes for cpu in node.cpus) + 2, len(host.nids), np.int8)
    for row, node in enumerate(host.nodes):
        rows[list(node.cpus)] = row
    return rows


def _touched_frames(phys_addrs: npt.NDArray[np.uint64], served: npt.NDArray[np.int64]) -> Frames:
    """Return each sample's frame, 0 for none and for what a cache behind the L1 served."""
    return np.where(served == Served.CACHE, np.uint64(0), phys_addrs // np.uint64(PAGE_BYTES))


def _migrated_pages(vmstat: Path) -> int:
    """Return how many pages the host has moved since boot, whoever asked for it."""
    for line in lines(read_text(vmstat)):
        name, _, value = line.partition(" ")
        if name == "pgmigrate_success":
            return int(value)
    return 0
