"""What did the guests access in a window, by the meter?"""

import time
from dataclasses import dataclass

from vmplace.lab.machine import LabHost
from vmplace.lab.topology import LabTopology
from vmplace.model.counted import counted_traffic
from vmplace.model.metrics import TrafficMatrix, local_access_ratio, mc_imbalance
from vmplace.sampling.counters_meter import GUEST_HOST, MeterCounters

WARM_UP_S = 1.0
"""After switching on, code is translated anew and the modelled caches fill: not the workload's doing."""


@dataclass(frozen=True)
class MeteredWindow:
    """DRAM accesses of one window by guest number (1 is the first of the scenario), and its length."""

    seconds: float
    guests: dict[int, TrafficMatrix]
    memory_nids: tuple[int, ...]

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

    def accesses_per_s(self, guest_id: int) -> tuple[tuple[float, ...], ...]:
        """Return the guest's accesses per second by (cpu nid, memory nid)."""
        rates = self.guests[guest_id].accesses / self.seconds
        return tuple(tuple(round(float(rate), 1) for rate in row) for row in rates)


def read_window(host: LabHost, topology: LabTopology, seconds: float, guest_count: int) -> MeteredWindow:
    """Switch the meter on, let the window pass, switch it off, and return what guests accessed in it."""
    with MeterCounters(host.shared_memory) as meter:
        host.run(["vmp-meter", "on"])
        try:
            time.sleep(WARM_UP_S)
            earlier, start = meter.read(), time.monotonic()
            time.sleep(seconds)
            growth, passed = meter.read().since(earlier), time.monotonic() - start
        finally:
            host.run(["vmp-meter", "off"])
    memory_nids = tuple(node.nid for node in topology.nodes if node.memory_bytes)
    ids = range(GUEST_HOST + 1, guest_count + 1)
    return MeteredWindow(
        passed, {guest_id: counted_traffic(growth, guest_id) for guest_id in ids}, memory_nids
    )
