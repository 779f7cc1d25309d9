"""What did the guests access in a window, by the meter?"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from lab.counted import counted_fetches, counted_traffic
from lab.counters_meter import GUEST_HOST, Counts, MeterCounters
from lab.errors import LabError
from lab.machine import LabHost
from lab.scenario_result import WORK_TOUCHES
from lab.topology import LabTopology
from vmplace.model.metrics import TrafficMatrix, local_access_ratio, mc_imbalance

FULL_SPEED = 64
"""Times its declared rate is more than emulated memory lets any guest do."""
WARM_UP_S = 1.0
"""After switching on, code is translated anew and the modelled caches fill: not the workload's doing."""


@dataclass(frozen=True)
class MeteredWindow:
    """DRAM accesses of one window by guest number (1 is the first of the scenario), and its length.

    ``fetches``: instructions by the node of their code, before caches.
    ``work`` is what each guest did (touches); ``elapsed_s`` the emulated time that passed for it, None in a
    window in ordinary time.
    """

    seconds: float
    guests: dict[int, TrafficMatrix]
    memory_nids: tuple[int, ...]
    work: dict[int, int]
    fetches: dict[int, TrafficMatrix]
    elapsed_s: dict[int, float] | None = None

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

    def fetch_lar(self, guest_id: int) -> float | None:
        """Return which share of the guest's instructions lies on the node that executes them."""
        return local_access_ratio(self.fetches[guest_id])

    def mc_imbalance(self, guest_id: int) -> float | None:
        """Return the imbalance of the memory controllers under this guest's traffic alone."""
        return mc_imbalance(self.guests[guest_id], self.memory_nids)

    def emulated_run_time_s(self, guest_id: int) -> float | None:
        """Return the emulated time that the guest needs for WORK_TOUCHES; None if it was not measured."""
        if self.elapsed_s is None or not self.work[guest_id]:
            return None
        return self.elapsed_s[guest_id] * WORK_TOUCHES / self.work[guest_id]

    def accesses_per_s(self, guest_id: int) -> tuple[tuple[float, ...], ...]:
        """Return the guest's accesses per second by (cpu nid, memory nid)."""
        rates = self.guests[guest_id].accesses / self.seconds
        return tuple(tuple(round(float(rate), 1) for rate in row) for row in rates)


def read_window(
    host: LabHost,
    topology: LabTopology,
    seconds: float,
    guest_count: int,
    set_speed: Callable[[int], object] | None = None,
) -> MeteredWindow:
    """Switch the meter on, let the window pass, switch it off, and return what guests accessed in it.

    With ``set_speed`` it is a window in emulated time, in which the guests work as fast as memory lets them:
    ``set_speed(n)`` makes them work n times as fast as declared.
    """
    with MeterCounters(host.shared_memory) as meter:
        # Before and after emulated time, in which an answer of the guests takes a minute.
        if set_speed:
            set_speed(FULL_SPEED)
        try:
            host.run(["vmp-meter", "time" if set_speed else "on"])
            time.sleep(WARM_UP_S)
            earlier, start = meter.read(), time.monotonic()
            time.sleep(seconds)
            growth, passed = meter.read().since(earlier), time.monotonic() - start
        finally:
            host.run(["vmp-meter", "off"])
            if set_speed:
                set_speed(1)
    if set_speed and not growth.timed:
        raise LabError("the meter keeps no emulated time", hint="vmplace lab build, and boot again")
    memory_nids = tuple(node.nid for node in topology.nodes if node.memory_bytes)
    ids = range(GUEST_HOST + 1, guest_count + 1)
    return MeteredWindow(
        seconds=passed,
        guests={guest_id: counted_traffic(growth, guest_id) for guest_id in ids},
        memory_nids=memory_nids,
        work={guest_id: int(growth.work[guest_id].sum()) for guest_id in ids},
        fetches={guest_id: counted_fetches(growth, guest_id) for guest_id in ids},
        elapsed_s={guest_id: elapsed_s(growth.stall_ns, guest_id) for guest_id in ids} if set_speed else None,
    )


def elapsed_s(stall_ns: Counts, guest_id: int) -> float:
    """Return the emulated seconds that passed for a guest, from ``stall_ns`` [guest, CPU] of a window.

    Time passes on a CPU while somebody waits for memory there, whoever it is: guests take turns.  What the
    emulator needs for instructions, and the kernels' ticks in real time, would be a fifth of a window.
    """
    mine = stall_ns[guest_id]
    return float(stall_ns.sum(axis=0) @ mine / max(int(mine.sum()), 1)) / 1e9
