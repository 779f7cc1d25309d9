"""What do replicas cost a guest that begins to write what it only read before?

Scenarios shared-table-written (four nodes) and shared-table-written-n2, with vmplace and with nobody, from
the same start.  Windows of WINDOW_S run from before the guest begins to write until the replicas are long
gone.  Each vCPU has a CPU for itself, the agent has the others.

Speed, in touches per second of the emulated host's time (the guest wants to make so many and no more), meter
off: in a profile of the first writes with the meter on, the meter's work took three times as long as the
guests' and the kernel's, and slowed most what touches memory most.  The guest counts its touches itself.

written_table_slowest  the slowest window with vmplace; control: the median window with nobody
written_table_mean     all windows, of both

What a touch costs, in ``instructions`` that the vCPUs' CPUs execute, for the guest and for its faults, meter
on:

written_table_read_instructions   windows before the first write
written_table_storm_instructions  the two windows of the first writes: each page collapses, once
written_table_later_instructions  the last windows
written_table_storm_executed      the instructions a second of all CPUs, guest, kernel and agent, in these
                                  two windows; control: with vmplace, too, before the first write.  What is
                                  more is what collapsing takes, whoever does it and whoever waits for it.

``written_table_n2_*``: on two nodes, whose four CPUs nothing else on the machine holds up.  Eight emulated
CPUs on two real ones wait for each other more than the guest would on a real host.

written_table_copies   MiB of replicas after the last window; control: before the first

Figures are {value, control, ratio, unit}; standard error tells each window: touches per second, and
where the meter is on, instructions per touch / LAR.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.record import Figures, add_record_options, measure
from bench.undisturbed import undisturb
from lab.counted import counted_traffic
from lab.counters_meter import MeterCounters, MeterReading
from lab.errors import LabError
from lab.machine import LabHost, boot_host
from lab.progress import Progress
from lab.scenario import ManagerName, read_scenario
from lab.scenario_managers import MANAGERS
from lab.scenario_prepare import Stage, prepare_stage
from vmplace.model.described_memory import MIB
from vmplace.model.metrics import local_access_ratio

MANAGED: tuple[ManagerName, ManagerName] = ("vmplace", "none")
GUEST = 1
WINDOW_S = 4.0
FIRST_S = 30.0
"""After the start: the agent has made the replicas by then; the guest writes when its clock shows 60 s."""
MORE_STORES = 0.05
"""A touch of the guest is 8 or 9 stores while it reads, and one or two more once it writes (a run)."""
WINDOWS = 16
LAST = 4
SPEED = "touches/s"
UNIT = "instructions of the vCPUs' CPUs per touch of the guest"
TO_THEMSELVES = """set -e
for cpu in {vcpus}; do virsh -q vcpupin {guest} $((cpu / 2)) $cpu --live; done
virsh -q emulatorpin {guest} {others} --live
for pid in $(pgrep -f 'vmplace agent'); do taskset -acp {others} $pid; done
"""
"""The scenarios' nodes have two CPUs each, their guests a vCPU on each node."""


Reading = tuple[float, MeterReading]
"""When, in seconds, and what was counted until then."""


@dataclass(frozen=True)
class Watched:
    """What was counted at the ends of all windows, and the bytes of replicas before and after these."""

    readings: list[Reading]
    copies: tuple[int, int]


@dataclass(frozen=True)
class Window:
    """One window, meter on: what each touch took, its stores, the guest's local access ratio.

    ``executed`` are the instructions per second of all CPUs, whoever had them execute these.
    """

    instructions: float
    stores: float
    lar: float | None
    executed: float


def vcpu_cpus(stage: Stage) -> list[int]:
    """Return the CPU of each vCPU."""
    return [2 * nid for nid in stage.scenario.guests[0].vcpu_nids]


def pin(host: LabHost, stage: Stage) -> None:
    """Give each vCPU a CPU for itself."""
    cpus = vcpu_cpus(stage)
    others = ",".join(str(cpu + 1) for cpu in cpus)
    guest = stage.scenario.guests[0].name
    host.run(TO_THEMSELVES.format(guest=guest, vcpus=" ".join(map(str, cpus)), others=others))


def watch(stage: Stage, name: ManagerName, *, alone: bool, metered: bool) -> Watched:
    """Return what was seen under one manager."""
    with boot_host(
        stage.topology, meter=True, snapshot=stage.snapshot, files=stage.files, artifacts=stage.artifacts
    ) as host:
        if alone:
            undisturb(host)
        started = time.monotonic()
        manager = MANAGERS[name](host, stage.scenario)
        manager.start()
        pin(host, stage)
        time.sleep(max(0.0, started + FIRST_S - time.monotonic()))
        before = manager.figures().replica_bytes
        if metered:
            host.run(["vmp-meter", "on"])
        readings = _readings(host)
        after = manager.figures().replica_bytes
        manager.stop()
    return Watched(readings, (before, after))


def _readings(host: LabHost) -> list[Reading]:
    with MeterCounters(host.shared_memory) as meter:
        readings = [(time.monotonic(), meter.read())]
        for _ in range(WINDOWS):
            time.sleep(WINDOW_S)
            readings.append((time.monotonic(), meter.read()))
    return readings


def touches_per_s(readings: list[Reading]) -> list[float]:
    """Return the guest's speed in each window, which it counts with the meter off, too."""
    return [
        int(new.since(old).work[GUEST].sum()) / (at - before)
        for (before, old), (at, new) in pairwise(readings)
    ]


def window_of(growth: MeterReading, seconds: float, cpus: list[int]) -> Window:
    """Return what the meter's growth says."""
    touches = int(growth.work[GUEST].sum())
    return Window(
        float(growth.instructions[:, cpus].sum()) / touches,
        float(growth.stores[GUEST].sum()) / touches,
        local_access_ratio(counted_traffic(growth, GUEST)),
        float(growth.instructions.sum()) / seconds,
    )


def first_written(windows: list[Window]) -> int:
    """Return the index of the first window with the guest's writes: it stores more per touch.

    The first window of all does not count: the meter is just on.
    """
    before, after = windows[1].stores, windows[-1].stores
    if after < (1 + MORE_STORES) * before:
        raise LabError("the guest wrote before its reading was measured", hint="run it on an idle machine")
    threshold = before + (after - before) / 4
    return next(i for i, window in enumerate(windows) if i > 1 and window.stores > threshold)


def phases(windows: list[Window]) -> dict[str, list[Window]]:
    """Return the windows while the guest reads, begins to write, and has been writing for long."""
    at = first_written(windows)
    # Without the first window: code is translated anew while the meter is just on.
    return {"read": windows[1:at], "storm": windows[at : at + 2], "later": windows[-LAST:]}


def compared(value: float, control: float, unit: str) -> dict[str, Any]:
    """Return one row."""
    return {"value": value, "control": control, "ratio": value / control, "unit": unit}


def written_table() -> Iterator[Figures]:
    """Yield the figures of each stage; tells the windows on standard error."""
    for scenario, prefix in (("shared-table-written", ""), ("shared-table-written-n2", "n2_")):
        stage = prepare_stage(read_scenario(scenario), Progress())
        for measured in (_speed, _instructions):
            rows = measured(stage, alone=bool(prefix))
            yield {f"written_table_{prefix}{name}": row for name, row in rows.items()}


def _speed(stage: Stage, *, alone: bool) -> dict[str, Any]:
    seen = [watch(stage, name, alone=alone, metered=False) for name in MANAGED]
    value, control = (touches_per_s(one.readings) for one in seen)
    for name, speeds in zip(MANAGED, (value, control), strict=True):
        print(stage.scenario.name, name, *(f"{one:.0f}" for one in speeds), file=sys.stderr)
    before, after = (count / MIB for count in seen[0].copies)
    if not before:
        raise LabError("no replicas were made before the guest wrote", hint="run it on an idle machine")
    return {
        "slowest": compared(min(value), statistics.median(control), SPEED),
        "mean": compared(statistics.mean(value), statistics.mean(control), SPEED),
        "copies": compared(after, before, "MiB"),
    }


def _instructions(stage: Stage, *, alone: bool) -> dict[str, Any]:
    value, control = (phases(_metered(stage, name, alone=alone)) for name in MANAGED)
    rows = {
        f"{phase}_instructions": compared(
            _mean(value[phase], _touch_cost), _mean(control[phase], _touch_cost), UNIT
        )
        for phase in value
    }
    before, storm = (_mean(value[phase], lambda window: window.executed) for phase in ("read", "storm"))
    return rows | {"storm_executed": compared(storm, before, "instructions/s of all CPUs")}


def _metered(stage: Stage, name: ManagerName, *, alone: bool) -> list[Window]:
    readings = watch(stage, name, alone=alone, metered=True).readings
    cpus = vcpu_cpus(stage)
    windows = [
        window_of(new.since(old), at - before, cpus) for (before, old), (at, new) in pairwise(readings)
    ]
    reported = (f"{one.instructions:.0f}/{one.lar or 0:.2f}" for one in windows)
    print(stage.scenario.name, name, "metered", *reported, file=sys.stderr)
    return windows


def _touch_cost(window: Window) -> float:
    return window.instructions


def _mean(windows: list[Window], of: Callable[[Window], float]) -> float:
    return statistics.mean(of(window) for window in windows)


def main() -> int:
    """Run the bench alone; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_record_options(parser)
    return measure("written", {"written": written_table}, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
