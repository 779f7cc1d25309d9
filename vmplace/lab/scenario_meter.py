"""What did the guests access in a window, by the meter?"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from vmplace.lab.errors import LabError
from vmplace.lab.machine import LabHost
from vmplace.lab.scenario_result import WORK_TOUCHES
from vmplace.lab.topology import LabTopology
from vmplace.model.counted import counted_traffic
from vmplace.model.metrics import TrafficMatrix, local_access_ratio, mc_imbalance
from vmplace.sampling.counters_meter import GUEST_HOST, MeterCounters

FULL_SPEED = 64
"""Times its declared rate is more than emulated memory lets any guest do."""
WARM_UP_S = 1.0
"""After switching on, code is translated anew and the modelled caches fill: not the workload's doing."""


@dataclass(frozen=True)
class MeteredWindow:
    """DRAM accesses of one window by guest number (1 is the first of the scenario), and its length.

    ``work`` is what each guest did (touches); ``dilation`` the real seconds of an emulated one, None for a
    window in ordinary time.
    """

    seconds: float
    guests: dict[int, TrafficMatrix]
    memory_nids: tuple[int, ...]
    work: dict[int, int]
    dilation: float | None = None

    @property
    def total(self) -> TrafficMatrix:
        """Return the traffic of all guests together."""
        matrices = list(self.guests.values())
        total = matrices[0]
        for matrix in matrices[1:]:
            total += matrix
        return total

    def lar(self, guest_id: int) -> float | None:
        """Return the guest's local access ratio."""
        return local_access_ratio(self.guests[guest_id])

    def mc_imbalance(self, guest_id: int) -> float | None:
        """Return the imbalance of the memory controllers under this guest's traffic alone."""
        return mc_imbalance(self.guests[guest_id], self.memory_nids)

    def emulated_run_time_s(self, guest_id: int) -> float | None:
        """Return the emulated time that the guest needs for WORK_TOUCHES; None if it was not measured."""
        if self.dilation is None or not self.work[guest_id]:
            return None
        return self.seconds / self.dilation * WORK_TOUCHES / self.work[guest_id]

    def accesses_per_s(self, guest_id: int) -> tuple[tuple[float, ...], ...]:
        """Return the guest's accesses per second by (cpu nid, memory nid)."""
        rates = self.guests[guest_id].accesses / self.seconds
        return tuple(tuple(round(float(rate), 1) for rate in row) for row in rates)


@dataclass(frozen=True)
class EmulatedTime:
    """How a window is held in emulated time: ``dilation`` is what the host was booted with.

    ``set_speed(n)`` lets the guests work n times as fast as declared, in so far as memory lets them.
    """

    dilation: float
    set_speed: Callable[[int], object]


def read_window(
    host: LabHost,
    topology: LabTopology,
    seconds: float,
    guest_count: int,
    emulated: EmulatedTime | None = None,
) -> MeteredWindow:
    """Switch the meter on, let the window pass, switch it off, and return what guests accessed in it."""
    with MeterCounters(host.shared_memory) as meter:
        host.run(["vmp-meter", "time" if emulated else "on"])
        try:
            # In emulated time already: guests in a hurry that nothing slows would take all of the machine.
            if emulated:
                emulated.set_speed(FULL_SPEED)
            time.sleep(WARM_UP_S)
            earlier, start = meter.read(), time.monotonic()
            time.sleep(seconds)
            growth, passed = meter.read().since(earlier), time.monotonic() - start
        finally:
            if emulated:
                emulated.set_speed(1)
            host.run(["vmp-meter", "off"])
    if emulated and not growth.timed:
        raise LabError("the meter keeps no emulated time", hint="vmplace lab build, and boot again")
    memory_nids = tuple(node.nid for node in topology.nodes if node.memory_bytes)
    ids = range(GUEST_HOST + 1, guest_count + 1)
    return MeteredWindow(
        seconds=passed,
        guests={guest_id: counted_traffic(growth, guest_id) for guest_id in ids},
        memory_nids=memory_nids,
        work={guest_id: int(growth.work[guest_id].sum()) for guest_id in ids},
        dilation=emulated.dilation if emulated else None,
    )
