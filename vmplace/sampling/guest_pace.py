"""What does an instruction of this guest take?  Cycles, by perf events of its vCPUs.

A cost: it rises where memory gets slower, and hardly depends on how much a guest has to do.
"""

from collections.abc import Mapping
from typing import Protocol

from vmplace.errors import UnsupportedHostError
from vmplace.sampling.counters_perf import PerfCounters
from vmplace.topology.guest import GuestTopology

EVENTS = {"cycles": (0, 0), "instructions": (0, 1)}
"""linux/perf_event.h: PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES and _INSTRUCTIONS."""
LEAST_INSTRUCTIONS = 1e6
"""A guest that did less in a window was idle: what its kernel does then says nothing of its memory."""


class GuestPace(Protocol):
    """Tells costs by window: each call of ``cost`` ends one and begins the next."""

    name: str

    def cost(self, guest: GuestTopology) -> float | None:
        """Return what an instruction took since the last call; None: not known (first call, idle, gone)."""

    def forget(self, guest: GuestTopology) -> None:
        """Let go of a guest that ended."""

    def close(self) -> None:
        """Let go of everything."""


class PerfPace:
    """By perf events."""

    name = "perf"

    def __init__(self, events: Mapping[str, tuple[int, int]] = EVENTS) -> None:
        """Raise UnsupportedHostError where CPUs count no cycles or perf is not permitted."""
        self._events = events
        probe = PerfCounters((0,), events)
        missing = [event for event, count in probe.counts().items() if count is None]
        probe.close()
        if missing:
            raise UnsupportedHostError(f"this CPU does not count {' and '.join(missing)}")
        self._counters: dict[tuple[int, ...], PerfCounters] = {}
        self._tids: dict[object, tuple[int, ...]] = {}

    def cost(self, guest: GuestTopology) -> float | None:
        """Return cycles per instruction of the guest's vCPU threads."""
        tids = tuple(vcpu.tid for vcpu in guest.vcpus)
        if self._tids.get(guest.identity) != tids:
            self.forget(guest)
            self._counters[tids] = PerfCounters(tids, self._events)
            self._tids[guest.identity] = tids
            return None
        counts = self._counters[tids].counts()
        return cost_of(counts["cycles"], counts["instructions"])

    def forget(self, guest: GuestTopology) -> None:
        """Take the guest's events off."""
        if tids := self._tids.pop(guest.identity, None):
            self._counters.pop(tids).close()

    def close(self) -> None:
        """Take all events off."""
        for counters in self._counters.values():
            counters.close()
        self._counters, self._tids = {}, {}


def cost_of(spent: float | None, instructions: float | None) -> float | None:
    """Return what an instruction took; None where it is not known, or the guest was idle."""
    if spent is None or instructions is None or instructions < LEAST_INSTRUCTIONS:
        return None
    return spent / instructions
