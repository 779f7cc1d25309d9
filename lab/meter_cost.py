"""What does the meter count of a guest, in place of the counters that emulated CPUs lack?

1. What an instruction takes: stall, in emulated time, while the meter keeps that.
2. How long its vCPUs wait for a CPU, in the emulated host's time: that needs no stand-in.
3. How often the guest accesses DRAM: lines while the meter counts them.  While it is off, which makes
   emulation several times faster, the touches that the payload says it has made: about a line each.
4. Which of these lines the own node served; of touches nobody knows.
5. Which vCPUs made them, as far as they may run on different CPUs: events of threads tell no more.

The agent inside finds this class by its entry point (pyproject.toml).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from lab.counters_meter import GuestTotals, MeterCounters
from vmplace.sampling.cpu_waits import CpuWaits
from vmplace.sampling.guest_cost import ByCpus, MemoryRate, cost_of, lar_of, vcpus_by_cpus
from vmplace.topology.guest import GuestTopology


@dataclass(frozen=True)
class _Look:
    """A guest's counters at one moment."""

    at_s: float
    totals: GuestTotals


class MeterCost:
    """By the meter of the emulated host, for guests whose numbers are given."""

    name = "meter"

    def __init__(self, numbers: Mapping[str, int]) -> None:
        """Raise UnsupportedHostError where there is no meter."""
        self._meter, self._numbers = MeterCounters(), numbers
        self._last: dict[str, _Look] = {}
        self._rates: dict[str, MemoryRate] = {}
        self._waits = CpuWaits()

    def cost(self, guest: GuestTopology) -> float | None:
        """Return emulated ns of stall per instruction; None while the meter keeps no time."""
        number = self._numbers.get(guest.name)
        if number is None:
            return None
        now, last = _Look(time.monotonic(), self._meter.totals(number)), self._last.get(guest.name)
        self._last[guest.name] = now
        if last is None:
            self._waits.ratio(guest)
            return None
        if (seconds := now.at_s - last.at_s) > 0:
            counted = _accesses(last.totals, now.totals)
            dram_per_us = None if counted is None else counted / seconds / 1e6
            lar, by_cpus = _lar(last.totals, now.totals), _by_cpus(guest, last.totals, now.totals, seconds)
            self._rates[guest.name] = MemoryRate(None, dram_per_us, lar=lar, by_cpus=by_cpus)
        return _cost(last.totals, now.totals)

    def rate(self, guest: GuestTopology) -> MemoryRate | None:
        """Return accesses by this host's clock; how busy emulated CPUs are tells nothing."""
        rate = self._rates.get(guest.name)
        return rate and replace(rate, waits=self._waits.ratio(guest))

    def forget(self, guest: GuestTopology) -> None:
        """Drop the last reading."""
        self._last.pop(guest.name, None)
        self._rates.pop(guest.name, None)
        self._waits.forget(guest)

    def close(self) -> None:
        """Unmap the meter."""
        self._meter.close()


def _accesses(last: GuestTotals, now: GuestTotals) -> int | None:
    """Return what was counted; None of a guest that says nothing while the meter is off: a program's, say."""
    if _are_counted(last, now):
        return now.lines - last.lines
    return now.work - last.work or None


def _by_cpus(guest: GuestTopology, last: GuestTotals, now: GuestTotals, seconds: float) -> ByCpus:
    """Return the accesses by CPUs; nothing where vCPUs share some: nobody can tell whose these are."""
    groups = vcpus_by_cpus(guest)
    if len(set(chain(*groups))) < sum(map(len, groups)):
        return ()
    are_lines = _are_counted(last, now)
    before, after = (one.lines_by_cpu if are_lines else one.work_by_cpu for one in (last, now))
    # Numbers of CPUs are those of the emulated host, without gaps.
    grown = [b - a for a, b in zip(before, after, strict=True)]
    rates = {cpus: sum(grown[cpu] for cpu in cpus) / seconds / 1e6 for cpus in groups}
    return tuple((cpus, len(vcpus), rates[cpus]) for cpus, vcpus in groups.items())


def _lar(last: GuestTotals, now: GuestTotals) -> float | None:
    if not _are_counted(last, now):
        return None
    local = now.local_lines - last.local_lines
    return lar_of(local, now.lines - last.lines - local)


def _are_counted(last: GuestTotals, now: GuestTotals) -> bool:
    """Tell whether the meter counted lines all the time between the two."""
    return last.enabled and now.enabled and last.switches == now.switches


def _cost(last: GuestTotals, now: GuestTotals) -> float | None:
    if not (now.timed and last.timed):
        return None
    return cost_of(float(now.stall_ns - last.stall_ns), float(now.instructions - last.instructions))
