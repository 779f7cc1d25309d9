"""What did the guests access in a window, by the meter?

A window is as long as the work in it takes: it ends when every guest has made the touches it declares for
so many seconds.  Where one needs more than ``LATEST`` times that, the machine was too slow: the window says
nothing and is taken again.  What guests' kernels access is left out of what is judged.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lab.counted import counted_by_programs, counted_fetches, counted_traffic
from lab.counters_meter import GUEST_HOST, Counts, MeterCounters, MeterReading
from lab.errors import RUN_AGAIN, LabError, TooSlowError
from lab.machine import LabHost
from lab.scenario_result import WORK_TOUCHES
from lab.topology import LabTopology
from vmplace.model.metrics import TrafficMatrix, local_access_ratio, mc_imbalance

FULL_SPEED = 64
"""Times its declared rate is more than emulated memory lets any guest do."""
WARM_UP_S = 1.0
"""After switching on, code is translated anew and the modelled caches fill: not the workload's doing."""
WARM_UP_MOST_S = 30.0
NODE_CACHE_LINES = 40_960
"""Of a node of two CPUs: 256 KiB each and 2 MiB in common (docs/meter.md)."""
LATEST = 1.25
"""A guest that needs more time than this for its work has less than 80 % of its declared rate."""
WINDOWS = 3
"""Of a set: figures are their median."""
RETAKES = 4
"""As many windows of a set may be taken again before the machine is called too slow."""
POLL_S = 0.05
UNATTRIBUTED_MAX = 0.001
"""More of the accesses than this without place or owner, and the meter is not to be believed."""


@dataclass(frozen=True)
class MeteredWindow:
    """DRAM accesses of one window by guest number (1 is the first of the scenario), and its length.

    ``guests`` is all of a guest's traffic, ``programs`` what is not its kernel's, which ratios are made of.
    ``fetches``: instructions by the node of their code, before caches.
    ``work`` is what each guest did (touches); ``elapsed_s`` the emulated time that passed for it, None in a
    window in ordinary time.  ``unattributed`` is the share of accesses without place or owner.
    """

    seconds: float
    guests: dict[int, TrafficMatrix]
    memory_nids: tuple[int, ...]
    work: dict[int, int]
    fetches: dict[int, TrafficMatrix]
    elapsed_s: dict[int, float] | None = None
    programs: dict[int, TrafficMatrix] = field(default_factory=dict)
    unattributed: float = 0.0

    @property
    def total(self) -> TrafficMatrix:
        """Return the traffic of all guests' programs together, as it was."""
        return self.total_of_work({})

    def total_of_work(self, touches: Mapping[int, float]) -> TrafficMatrix:
        """Return the traffic of all guests' programs, each scaled to so many touches.

        The machine outside lets guests make more or less of their touches; where a touch goes does not depend
        on it.  A guest that is not given, or did nothing, counts as it was.
        """
        matrices = [self._scaled(guest_id, touches.get(guest_id)) for guest_id in self.guests]
        total = matrices[0]
        for matrix in matrices[1:]:
            total += matrix
        return total

    def _scaled(self, guest_id: int, touches: float | None) -> TrafficMatrix:
        traffic, made = self._programs(guest_id), self.work.get(guest_id, 0)
        if touches is None or not made:
            return traffic
        return TrafficMatrix(traffic.nids, traffic.accesses * (touches / made))

    def _programs(self, guest_id: int) -> TrafficMatrix:
        return self.programs.get(guest_id, self.guests[guest_id])

    def lar(self, guest_id: int) -> float | None:
        """Return the local access ratio of the guest's programs."""
        return local_access_ratio(self._programs(guest_id))

    def fetch_lar(self, guest_id: int) -> float | None:
        """Return which share of the guest's instructions lies on the node that executes them."""
        return local_access_ratio(self.fetches[guest_id])

    def mc_imbalance(self, guest_id: int) -> float | None:
        """Return the imbalance of the memory controllers under the traffic of this guest's programs alone."""
        return mc_imbalance(self._programs(guest_id), self.memory_nids)

    def lines_per_touch(self, guest_id: int) -> float | None:
        """Return how many lines the guest's programs had fetched and written back per touch."""
        made = self.work.get(guest_id, 0)
        return float(self._programs(guest_id).accesses.sum()) / made if made else None

    def emulated_run_time_s(self, guest_id: int) -> float | None:
        """Return the emulated time that the guest needs for WORK_TOUCHES; None if it was not measured."""
        if self.elapsed_s is None or not self.work[guest_id]:
            return None
        return self.elapsed_s[guest_id] * WORK_TOUCHES / self.work[guest_id]

    def accesses_per_s(self, guest_id: int) -> tuple[tuple[float, ...], ...]:
        """Return the accesses per second of the guest's programs by (cpu nid, memory nid)."""
        rates = self._programs(guest_id).accesses / self.seconds
        return tuple(tuple(round(float(rate), 1) for rate in row) for row in rates)


@dataclass(frozen=True)
class WindowSet:
    """Windows of the same thing, one after the other, and how many had to be taken again."""

    windows: tuple[MeteredWindow, ...]
    retakes: int = 0

    def median(self, figure: Callable[[MeteredWindow], float | None]) -> float | None:
        """Return the median of a figure; None if a window has none."""
        values = [figure(window) for window in self.windows]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known and len(known) == len(values) else None

    def spread(self, figure: Callable[[MeteredWindow], float | None]) -> float | None:
        """Return how far the largest and the smallest of a figure are apart."""
        known = [value for window in self.windows if (value := figure(window)) is not None]
        return max(known) - min(known) if known else None


def read_window(host: LabHost, topology: LabTopology, seconds: float, guest_count: int) -> MeteredWindow:
    """Switch the meter on, let the seconds pass, switch it off, and return what guests accessed meanwhile."""
    with MeterCounters(host.shared_memory) as meter, _metering(host, "on"):
        time.sleep(WARM_UP_S)
        growth, passed = _passed(meter, seconds)
    return metered_window(growth, passed, topology, guest_count)


def read_emulated_windows(
    host: LabHost,
    topology: LabTopology,
    seconds: float,
    guest_count: int,
    set_speed: Callable[[int], object],
) -> WindowSet:
    """Return windows in emulated time, in which the guests work as fast as memory lets them.

    ``set_speed(n)`` makes them work n times as fast as declared.
    """
    windows: list[MeteredWindow] = []
    with MeterCounters(host.shared_memory) as meter:
        # Before and after emulated time, in which an answer of the guests takes a minute.
        set_speed(FULL_SPEED)
        try:
            with _metering(host, "time"):
                time.sleep(WARM_UP_S)
                for _ in range(WINDOWS):
                    growth, passed = _passed(meter, seconds)
                    if not growth.timed:
                        raise LabError(
                            "the meter keeps no emulated time", hint="vmplace lab build, and boot again"
                        )
                    windows.append(metered_window(growth, passed, topology, guest_count))
        finally:
            set_speed(1)
    return WindowSet(tuple(windows))


@contextlib.contextmanager
def _metering(host: LabHost, how: str) -> Iterator[None]:
    """Have the meter count within the block."""
    host.run(["vmp-meter", how])
    try:
        yield
    finally:
        host.run(["vmp-meter", "off"])


def _passed(meter: MeterCounters, seconds: float) -> tuple[MeterReading, float]:
    """Let the seconds pass; return what was counted, and how many they were."""
    earlier, start = meter.read(), time.monotonic()
    time.sleep(seconds)
    return meter.read().since(earlier), time.monotonic() - start


def read_windows(
    host: LabHost, topology: LabTopology, seconds: float, guest_count: int, rates: Mapping[int, float]
) -> WindowSet:
    """Return three windows in which each guest made its touches of so many seconds.

    ``rates`` are the declared touches a second by guest number; without any, a window lasts as asked for.
    Raises TooSlowError where windows had to be taken again too often, and LabError for a meter that cannot
    tell where accesses went.
    """
    sound: list[MeteredWindow] = []
    retakes = 0
    with MeterCounters(host.shared_memory) as meter, _metering(host, "on"):
        _warm_up(meter, rates)
        while len(sound) < WINDOWS:
            growth, passed = _grown(meter, seconds, rates)
            if late := late_guests(growth, passed, rates):
                retakes += 1
                if retakes > RETAKES:
                    raise too_slow(growth, passed, rates, late)
                continue
            sound.append(metered_window(growth, passed, topology, guest_count))
    if (worst := max(window.unattributed for window in sound)) > UNATTRIBUTED_MAX:
        raise LabError(
            f"the meter could not tell of {worst:.2%} of all accesses whose or where they were",
            hint="run it again, and report it if that goes on",
        )
    return WindowSet(tuple(sound), retakes)


def _warm_up(meter: MeterCounters, rates: Mapping[int, float]) -> None:
    """Wait until the modelled caches are full: before that, next to nothing is written back."""
    earlier, start = meter.read(), time.monotonic()
    while True:
        time.sleep(WARM_UP_S)
        is_full = not rates or caches_are_full(meter.read().since(earlier))
        if is_full or time.monotonic() - start > WARM_UP_MOST_S:
            return


def caches_are_full(growth: MeterReading) -> bool:
    """Tell whether the CPUs of each node on which guests worked have fetched what their caches hold."""
    fetched: dict[int, int] = {}
    lines, work = growth.reads.sum(axis=(0, 2)), growth.work.sum(axis=0)
    for cpu, nid in enumerate(growth.cpu_nids):
        fetched[nid] = fetched.get(nid, 0) + int(lines[cpu])
    worked = {nid for cpu, nid in enumerate(growth.cpu_nids) if work[cpu]}
    return all(fetched[nid] >= NODE_CACHE_LINES for nid in worked)


def _grown(meter: MeterCounters, seconds: float, rates: Mapping[int, float]) -> tuple[MeterReading, float]:
    """Return what was counted until all guests had done their work, or had had time enough for it."""
    earlier, start = meter.read(), time.monotonic()
    while True:
        time.sleep(POLL_S if rates else seconds)
        growth, passed = meter.read().since(earlier), time.monotonic() - start
        is_done = all(growth.work[guest].sum() >= rate * seconds for guest, rate in rates.items())
        if is_done or passed >= seconds * LATEST:
            return growth, passed


def late_guests(growth: MeterReading, passed: float, rates: Mapping[int, float]) -> tuple[int, ...]:
    """Return the guests that did less than 80 % of what they declare for the time that passed."""
    least = {guest: rate * passed / LATEST for guest, rate in rates.items()}
    return tuple(guest for guest, wanted in least.items() if growth.work[guest].sum() < wanted)


def too_slow(
    growth: MeterReading, passed: float, rates: Mapping[int, float], late: Sequence[int]
) -> LabError:
    """Return the error for guests that do not get to do their work, or do nothing at all."""
    made = {guest: float(growth.work[guest].sum()) / (rates[guest] * passed) for guest in late}
    silent = [guest for guest, share in made.items() if share == 0.0]
    if silent and len(silent) < len(rates):
        return LabError(
            f"guest {', '.join(map(str, silent))} fell silent while others worked", hint=RUN_AGAIN
        )
    reported = ", ".join(f"guest {guest} made {share:.0%}" for guest, share in made.items())
    return TooSlowError(f"{reported} of its declared touches")


def metered_window(
    growth: MeterReading, seconds: float, topology: LabTopology, guest_count: int
) -> MeteredWindow:
    """Return what was counted in so many seconds as a window."""
    ids = range(GUEST_HOST + 1, guest_count + 1)
    stalls = {guest_id: elapsed_s(growth.stall_ns, guest_id) for guest_id in ids} if growth.timed else None
    return MeteredWindow(
        seconds=seconds,
        guests={guest_id: counted_traffic(growth, guest_id) for guest_id in ids},
        memory_nids=tuple(node.nid for node in topology.nodes if node.memory_bytes),
        work={guest_id: int(growth.work[guest_id].sum()) for guest_id in ids},
        fetches={guest_id: counted_fetches(growth, guest_id) for guest_id in ids},
        elapsed_s=stalls,
        programs={guest_id: counted_by_programs(growth, guest_id) for guest_id in ids},
        unattributed=growth.unattributed_share,
    )


def elapsed_s(stall_ns: Counts, guest_id: int) -> float:
    """Return the emulated seconds that passed for a guest, from ``stall_ns`` [guest, CPU] of a window.

    Time passes on a CPU while somebody waits for memory there, whoever it is: guests take turns.  What the
    emulator needs for instructions, and the kernels' ticks in real time, would be a fifth of a window.
    """
    mine = stall_ns[guest_id]
    return float(stall_ns.sum(axis=0) @ mine / max(int(mine.sum()), 1)) / 1e9
