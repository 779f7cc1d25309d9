"""What the agent's sources would show of a simulated guest: bits by node with early readings, and samples.

1. Bits are cleared when a guest is armed.  Each reading sets those that were touched since the last one:
   with n touches expected, a bit is set with chance 1 - exp(-n), whatever was before.
2. One DRAM access in ``period`` is sampled; it tells page, node and whether it wrote.
3. Watching has a price: arming flushes all vCPUs' TLBs, the first touch of each page and node sets a bit, and
   the agent reads them.  The prices are of a real second, in which a program does ``scale`` times as much.

Source: sampling/source_kvm.py, source_ibs.py and source_idle.py, whose samples these are alike in form.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.errors import GuestGoneError
from vmplace.policy.host_view import row_sums
from vmplace.sampling.sample import (
    EarlyBits,
    NodeBits,
    NodeHits,
    RangeSample,
    SampleBatch,
    SourceCoverage,
)
from vmplace.sampling.served import Served, ServedAccesses
from vmplace.simulate.agent_host import SimulatedMachine
from vmplace.simulate.look import Look
from vmplace.simulate.simulated_guest import SimulatedGuest
from vmplace.simulate.source_views import Sensor
from vmplace.simulate.watch_costs import SAMPLE_NS, SET_BIT_NS
from vmplace.topology.guest import GuestTopology

LOOK_PAGE_NS = 450.0
"""Of the agent, for each page that was touched in a window: the harvest takes some 30 ms for a GiB of small
pages that several nodes touch, and what is learnt from it and the plan 80 (make bench-policy: decision)."""
READ_PAGE_NS = 1.0
"""Of the agent, for each page of a guest and reading of node bits (make bench: some 0.3 ms a GiB)."""
IDLE_PAGE_NS = 100.0
"""The same where a stock kernel marks pages idle, or is asked whether they are (sampling/idle_pieces.py)."""

Words = npt.NDArray[np.uint64]


@dataclass
class _Window:
    """What was seen of a guest since it was armed; bits [N + 1, S] by slot, hits of frames."""

    started_ns: int
    accessed: npt.NDArray[np.uint8]
    written: npt.NDArray[np.uint8]
    early: list[EarlyBits]
    hit_frames: list[npt.NDArray[np.int64]]
    hit_rows: list[npt.NDArray[np.int64]]
    samples: npt.NDArray[np.int64]


class TraceSource:
    """A source of the agent whose guests replay traces; ``seed`` draws what chance decides."""

    def __init__(self, machine: SimulatedMachine, sensor: Sensor, seed: int) -> None:
        self.name, self._machine, self._sensor = sensor.name, machine, sensor
        by_node = sensor.bits or sensor.period is not None
        self.coverage = SourceCoverage(
            written=by_node, accessor_nid=by_node, sampled=by_node and not sensor.bits
        )
        self._chance = np.random.default_rng(seed)
        self._windows: dict[tuple[int, int], _Window] = {}

    @property
    def _is_idle(self) -> bool:
        return self._sensor.name == "idle"

    def arm(self, guest: GuestTopology) -> None:
        """Clear all bits; raises GuestGoneError."""
        mine = self._guest(guest, "arm")
        if self._is_idle:
            self._machine.clock.work(IDLE_PAGE_NS * mine.slots)
        rows = len(self._machine.nids) + 1
        self._machine.simulation.shown[mine.name] = []
        if self._sensor.period is None or self._sensor.bits:
            self._charge(mine, self._machine.simulation.costs.flush_ns)
        bits = np.zeros((2, rows, mine.slots), np.uint8)
        nothing = np.zeros((len(Served),), np.int64)
        clock = self._machine.clock
        self._windows[guest.identity] = _Window(clock.monotonic_ns(), bits[0], bits[1], [], [], [], nothing)

    def read_early(self, guest: GuestTopology) -> None:
        """Read the bits so far."""
        mine, window = self._guest(guest, "read"), self._windows[guest.identity]
        if self._sensor.bits:
            self._read(mine, window)
            after_ns = self._machine.clock.monotonic_ns() - window.started_ns
            window.early.append(EarlyBits(after_ns, packed(window.accessed, mine.run.unit_pages)))

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """Return the window; raises GuestGoneError."""
        mine, window = self._guest(guest, "harvest"), self._windows.pop(guest.identity)
        self._read(mine, window)
        touched = np.count_nonzero(np.bitwise_or.reduce(window.accessed, axis=0))
        ended_ns = self._machine.clock.monotonic_ns()
        self._machine.clock.work(LOOK_PAGE_NS * touched)
        served = self._served(window, ended_ns) if self._sensor.period else None
        sample = self._sample(guest, mine, window)
        nids, started_ns = self._machine.nids, window.started_ns
        return SampleBatch(
            guest.name, self.name, self.coverage, started_ns, ended_ns, nids, (sample,), served
        )

    def forget(self, guest: GuestTopology) -> None:
        """Drop the guest's window."""
        self._windows.pop(guest.identity, None)

    def close(self) -> None:
        """Hold nothing."""
        self._windows.clear()

    def _guest(self, guest: GuestTopology, step: str) -> SimulatedGuest:
        self._machine.trouble.before(step, self._machine.alive(guest.pid))
        mine = self._machine.alive(guest.pid)
        if mine is None:
            raise GuestGoneError(f"process {guest.pid} ended")
        return mine

    def _sample(self, guest: GuestTopology, mine: SimulatedGuest, window: _Window) -> RangeSample:
        size = mine.run.unit_pages
        anywhere = np.repeat(np.bitwise_or.reduce(window.accessed, axis=0), size)
        by_node, counted = None, None
        if not self._is_idle:
            by_node = NodeBits(
                packed(window.accessed, size), packed(window.written, size), tuple(window.early)
            )
        if self._sensor.period is not None:
            counted = NodeHits(_joined(window.hit_frames), _joined(window.hit_rows))
        huge = mine.huge_blocks()
        return RangeSample(guest.ram[0], anywhere, mine.frame_nodes(), huge, by_node, counted=counted)

    def _read(self, mine: SimulatedGuest, window: _Window) -> None:
        """Take in what happened since the last reading."""
        simulation = self._machine.simulation
        parts, simulation.shown[mine.name] = simulation.shown[mine.name], []
        self._machine.clock.work((IDLE_PAGE_NS if self._is_idle else READ_PAGE_NS) * mine.slots)
        if not parts:
            return
        look = Look(parts, np.zeros((len(mine.run.node), len(self._machine.nids)))).near
        pages = Look(parts, np.zeros(0)).rows
        slots = mine.run.spec.trace.frame[pages]
        if self._sensor.bits or self._sensor.period is None:
            self._set_bits(mine, window, look, slots)
        if self._sensor.period is not None:
            self._take_samples(mine, window, look, slots)

    def _set_bits(
        self, mine: SimulatedGuest, window: _Window, look: Look, slots: npt.NDArray[np.integer]
    ) -> None:
        before = int(window.accessed.sum())
        for bits, counts in ((window.accessed, look.touches), (window.written, look.stores)):
            seen = self._chance.random(counts.shape) < -np.expm1(-counts)
            for node in range(counts.shape[1]):
                bits[node][slots[seen[:, node]]] = 1
        self._charge(mine, SET_BIT_NS * (int(window.accessed.sum()) - before) / mine.run.parallelism)

    def _take_samples(
        self, mine: SimulatedGuest, window: _Window, look: Look, slots: npt.NDArray[np.integer]
    ) -> None:
        dram, stores = look.dram, look.stores
        taken = self._chance.poisson(dram / (self._sensor.period or 1))
        wrote = self._chance.binomial(taken, np.clip(stores / np.maximum(dram, 1e-9), 0, 1))
        at, node = np.nonzero(taken)
        # A program that is sampled one access in ``period`` is sampled at most some thousand times a second.
        each = np.minimum(taken[at, node], MOST_HITS)
        window.hit_frames.append(self._frames_of(mine, np.repeat(slots[at].astype(np.int64), each)))
        window.hit_rows.append(np.repeat(node.astype(np.int64), each))
        if not self._sensor.bits:
            window.accessed[node, slots[at]] = 1
            at, node = np.nonzero(wrote)
            window.written[node, slots[at]] = 1
        where = mine.nodes()[slots]
        local = int(taken[np.arange(len(where)), np.maximum(where, 0)].sum())
        window.samples[Served.LOCAL] += local
        window.samples[Served.REMOTE] += int(taken.sum()) - local
        samples = float(row_sums(taken.astype(np.float64)).sum())
        self._charge(mine, 0.0 if self._sensor.free else SAMPLE_NS * samples / mine.run.parallelism)

    def _frames_of(self, mine: SimulatedGuest, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return a frame of each slot: which one of a huge page is accessed is not kept."""
        size = mine.run.unit_pages
        return slots if size == 1 else slots * size + self._chance.integers(0, size, len(slots))

    def _served(self, window: _Window, ended_ns: int) -> ServedAccesses:
        """Return what the samples imply; a window of the trace's time, in which the accesses happened."""
        span_ns = round((ended_ns - window.started_ns) / self._machine.clock.scale)
        accesses = window.samples * (self._sensor.period or 1)
        nothing = (0,) * len(Served)
        return ServedAccesses(span_ns, tuple(window.samples.tolist()), tuple(accesses.tolist()), nothing)

    def _charge(self, mine: SimulatedGuest, ns: float) -> None:
        """Hold the guest up for ``ns`` of a real second."""
        self._machine.simulation.pause[mine.name] += ns / self._machine.clock.scale


MOST_HITS = 1 << 10
"""Of one page, node and reading: enough to tell that it is hot."""


def packed(bits: npt.NDArray[np.uint8], times: int = 1) -> Words:
    """Return a bitmap of 64-bit words for each row of bytes of 0 or 1, each of them ``times``."""
    count = bits.shape[1] * times
    whole = np.zeros((bits.shape[0], -(-count // 64) * 64), np.uint8)
    whole[:, :count] = bits if times == 1 else np.repeat(bits, times, axis=1)
    return np.packbits(whole, axis=1, bitorder="little").view(np.uint64)


def _joined(parts: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *parts])
