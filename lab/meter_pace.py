"""What does an instruction of this guest take, by the meter?  Stall, in emulated time.

CPUs of an emulated host have no counters.  The agent inside finds this class by its
entry point (pyproject.toml).
"""

from collections.abc import Mapping

from lab.counters_meter import MeterCounters, MeterReading
from vmplace.sampling.guest_pace import cost_of
from vmplace.topology.guest import GuestTopology


class MeterPace:
    """By the meter of the emulated host, for guests whose numbers are told."""

    name = "meter"

    def __init__(self, numbers: Mapping[str, int]) -> None:
        """Raise UnsupportedHostError where there is no meter."""
        self._meter, self._numbers = MeterCounters(), numbers
        self._last: dict[str, MeterReading] = {}

    def cost(self, guest: GuestTopology) -> float | None:
        """Return emulated ns of stall per instruction; None while the meter keeps no time."""
        number, now = self._numbers.get(guest.name), self._meter.read()
        last, self._last[guest.name] = self._last.get(guest.name), now
        if number is None or last is None or not (now.timed and last.timed):
            return None
        growth = now.since(last)
        return cost_of(float(growth.stall_ns[number].sum()), float(growth.instructions[number].sum()))

    def forget(self, guest: GuestTopology) -> None:
        """Drop the last reading."""
        self._last.pop(guest.name, None)

    def close(self) -> None:
        """Unmap the meter."""
        self._meter.close()
