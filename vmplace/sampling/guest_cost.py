"""What does an instruction of this guest take?  Cycles, by perf events of its vCPUs.

A cost: it rises where memory gets slower, and hardly depends on how much a guest has to do.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from vmplace import counting
from vmplace.errors import UnsupportedHostError
from vmplace.sampling.counters_perf import PerfCounters
from vmplace.sampling.cpu_waits import CpuWaits
from vmplace.sampling.dram_events import LOCAL, REMOTE, dram_events, misses_cpuless
from vmplace.topology.guest import GuestTopology, Vcpu

EVENTS = {"cycles": (0, 0), "instructions": (0, 1)}
"""linux/perf_event.h: PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES and _INSTRUCTIONS."""
TASK_CLOCK = "task clock"
CLOCK_EVENT = {TASK_CLOCK: (1, 1)}
"""PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK: ns that the threads ran."""
LEAST_INSTRUCTIONS = 1e6
"""A guest that did less in a window was idle: what its kernel does then says nothing of its memory."""
ByCpus = tuple[tuple[tuple[int, ...], int, float | None], ...]
"""CPUs, how many vCPUs may run on these, and their accesses a microsecond; None: nobody counted these."""
LEAST_ACCESSES = 1000
"""Of fewer the share is chance; of so many, each by itself, it is known to 0.03 in 19 of 20 windows."""


@dataclass(frozen=True)
class MemoryRate:
    """How busy a guest's vCPUs were: CPUs at once, DRAM accesses a microsecond; None: not counted here.

    ``waits``: ns that they waited for a CPU for each ns that they ran.  ``lar``: the share of these accesses
    that their own node served, 0 to 1; None where events do not tell nodes apart, or hardly any was counted.
    ``misses_cpuless``: what nodes without CPUs served is not among them.
    ``by_cpus``: the accesses by the CPUs that vCPUs may run on; empty where all may run on the same ones.
    """

    cpus: float | None
    dram_per_us: float | None
    waits: float | None = None
    lar: float | None = None
    misses_cpuless: bool = False
    by_cpus: ByCpus = ()


@runtime_checkable
class CountsMemory(Protocol):
    """A cost that counts accesses to memory, too."""

    def rate(self, guest: GuestTopology) -> MemoryRate | None:
        """Return what the guest did in the window that the last call of ``cost`` ended.

        ``waits`` are of the time since the last call of ``rate``.
        """


class GuestCost(Protocol):
    """Tells costs by window: each call of ``cost`` ends one and begins the next."""

    name: str

    def cost(self, guest: GuestTopology) -> float | None:
        """Return what an instruction took since the last call; None: not known (first call, idle, gone)."""

    def forget(self, guest: GuestTopology) -> None:
        """Let go of a guest that ended."""

    def close(self) -> None:
        """Let go of everything."""


class PerfCost:
    """By perf events."""

    name = "perf"

    def __init__(
        self,
        events: Mapping[str, tuple[int, int]] = EVENTS,
        dram: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """Raise UnsupportedHostError where CPUs count no cycles or perf is not permitted.

        ``dram``: events that add up to the accesses that DRAM served, those of this CPU if not given.
        """
        self._dram = dram_events() if dram is None else dram
        self._events = {**events, **CLOCK_EVENT, **self._dram}
        self._rates: dict[object, MemoryRate] = {}
        self._counted_ns: dict[object, int] = {}
        probe = PerfCounters((0,), events)
        missing = [event for event, count in probe.counts().items() if count is None]
        probe.close()
        if missing:
            counting.close()
            hint = "if this host is a virtual machine, give it a PMU (QEMU: -cpu host,pmu=on)"
            raise UnsupportedHostError(f"this CPU does not count {' and '.join(missing)}", hint=hint)
        self._counters: dict[tuple[int, ...], PerfCounters] = {}
        self._tids: dict[object, tuple[int, ...]] = {}
        self._waits = CpuWaits()

    def cost(self, guest: GuestTopology) -> float | None:
        """Return cycles per instruction of the guest's vCPU threads."""
        tids = tuple(vcpu.tid for vcpu in guest.vcpus)
        if self._tids.get(guest.identity) != tids:
            self.forget(guest)
            self._counters[tids] = PerfCounters(tids, self._events, guest.pid)
            self._tids[guest.identity] = tids
            self._counted_ns[guest.identity] = time.monotonic_ns()
            self._waits.ratio(guest)
            return None
        # Where they cannot be read now, nothing is known: what was counted once is not kept.
        self._rates.pop(guest.identity, None)
        counts = self._counters[tids].counts()
        self._note_rate(guest, counts)
        return cost_of(counts["cycles"], counts["instructions"])

    def rate(self, guest: GuestTopology) -> MemoryRate | None:
        """Return how busy the vCPU threads were, None before the second call of ``cost``."""
        rate = self._rates.get(guest.identity)
        return rate and replace(rate, waits=self._waits.ratio(guest))

    def _note_rate(self, guest: GuestTopology, counts: Mapping[str, float | None]) -> None:
        now = time.monotonic_ns()
        before, self._counted_ns[guest.identity] = self._counted_ns.get(guest.identity), now
        ran_ns, served = counts[TASK_CLOCK], [counts[name] for name in self._dram]
        if before is None or ran_ns is None or now == before:
            return
        known = [count for count in served if count is not None]
        dram_per_us = sum(known) * 1000 / (now - before) if known and len(known) == len(served) else None
        lar = lar_of(counts.get(LOCAL), counts.get(REMOTE))
        self._rates[guest.identity] = MemoryRate(
            ran_ns / (now - before),
            dram_per_us,
            lar=lar,
            misses_cpuless=misses_cpuless(self._dram),
            by_cpus=self._by_cpus(guest, (now - before) / 1000),
        )

    def _by_cpus(self, guest: GuestTopology, span_us: float) -> ByCpus:
        counters, found = self._counters[self._tids[guest.identity]], []
        for cpus, vcpus in vcpus_by_cpus(guest).items():
            count = counters.counted_of(self._dram, [vcpu.tid for vcpu in vcpus])
            found.append((cpus, len(vcpus), None if count is None else count / span_us))
        return tuple(found)

    def forget(self, guest: GuestTopology) -> None:
        """Take the guest's events off."""
        self._waits.forget(guest)
        self._rates.pop(guest.identity, None)
        self._counted_ns.pop(guest.identity, None)
        if tids := self._tids.pop(guest.identity, None):
            self._counters.pop(tids).close()

    def close(self) -> None:
        """Take all events off."""
        for counters in self._counters.values():
            counters.close()
        self._counters, self._tids = {}, {}
        counting.close()


def vcpus_by_cpus(guest: GuestTopology) -> dict[tuple[int, ...], list[Vcpu]]:
    """Return the vCPUs by the CPUs that they may run on; none where all may run on the same ones."""
    found: dict[tuple[int, ...], list[Vcpu]] = {}
    for vcpu in guest.vcpus:
        found.setdefault(vcpu.cpus, []).append(vcpu)
    return found if len(found) > 1 else {}


def cost_of(spent: float | None, instructions: float | None) -> float | None:
    """Return what an instruction took; None where it is not known, or the guest was idle."""
    if spent is None or instructions is None or instructions < LEAST_INSTRUCTIONS:
        return None
    return spent / instructions


def lar_of(local: float | None, remote: float | None) -> float | None:
    """Return the share of accesses that the own node served; None where one is not known, or few were made.

    Both are scaled to what they would be had they been counted all the time (counters_perf.py).  A count
    below 0 is none: its counter began anew.
    """
    if local is None or remote is None or min(local, remote) < 0 or local + remote < LEAST_ACCESSES:
        return None
    return local / (local + remote)
