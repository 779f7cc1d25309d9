"""What do replicas cost a guest that begins to write what it only read before?

Scenario shared-table-written, once with vmplace and once with nobody, from the same start.  Windows of
WINDOW_S run from before the guest begins to write until the replicas are long gone.  Each vCPU has a CPU for
itself, the agent has the others: what these CPUs executed, for the guest and for its faults, over the
touches that the guest made, is what a touch costs the guest.

written_table_read   windows before the first write
written_table_storm  the window of the first writes: each page collapses, once
written_table_later  the last windows

How fast the guest is, in touches per second of the emulated host's time (it wants to make so many and no
more), and ``_instructions`` per touch.  Prints {NAME: {value, control, ratio, unit}}, and on standard error
each window: touches per second / instructions per touch / LAR.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vmplace.lab.machine import boot_host
from vmplace.lab.progress import Progress
from vmplace.lab.scenario import ManagerName, read_scenario
from vmplace.lab.scenario_managers import MANAGERS
from vmplace.lab.scenario_run import Stage, prepare_stage
from vmplace.model.counted import counted_traffic
from vmplace.model.metrics import local_access_ratio
from vmplace.sampling.counters_meter import MeterCounters, MeterReading

MANAGED: tuple[ManagerName, ManagerName] = ("vmplace", "none")
GUEST = 1
WINDOW_S = 4.0
FIRST_S = 30.0
"""After the start: the agent has made the replicas by then, and the guest writes from 45 s on."""
WINDOWS = 16
LAST = 4
UNIT = "instructions of the vCPUs' CPUs per touch of the guest"
TO_THEMSELVES = """set -e
for node in 0 1 2 3; do virsh -q vcpupin {guest} $node $((2 * node)) --live; done
virsh -q emulatorpin {guest} 1,3,5,7 --live
for pid in $(pgrep -f 'vmplace agent'); do taskset -acp 1,3,5,7 $pid; done
"""
"""Scenario's nodes have two CPUs each, its guest a vCPU on each node."""
VCPU_CPUS = [0, 2, 4, 6]


@dataclass(frozen=True)
class Window:
    """One window: the guest's touches per second, what each took, its stores, its local access ratio."""

    touches_per_s: float
    instructions: float
    stores: float
    lar: float | None


def window_of(growth: MeterReading, seconds: float) -> Window:
    """Return what the meter's growth says."""
    touches = int(growth.work[GUEST].sum())
    return Window(
        touches / seconds,
        float(growth.instructions[:, VCPU_CPUS].sum()) / touches,
        float(growth.stores[GUEST].sum()) / touches,
        local_access_ratio(counted_traffic(growth, GUEST)),
    )


def watch(stage: Stage, name: ManagerName) -> list[Window]:
    """Return all windows under one manager."""
    with boot_host(
        stage.topology, meter=True, snapshot=stage.snapshot, files=stage.files, artifacts=stage.artifacts
    ) as host:
        started = time.monotonic()
        manager = MANAGERS[name](host, stage.scenario)
        manager.start()
        host.run(TO_THEMSELVES.format(guest=stage.scenario.guests[0].name))
        time.sleep(max(0.0, started + FIRST_S - time.monotonic()))
        host.run(["vmp-meter", "on"])
        with MeterCounters(host.shared_memory) as meter:
            readings = [(time.monotonic(), meter.read())]
            for _ in range(WINDOWS):
                time.sleep(WINDOW_S)
                readings.append((time.monotonic(), meter.read()))
        manager.stop()
    return [window_of(new.since(old), at - before) for (before, old), (at, new) in pairwise(readings)]


def first_written(windows: list[Window]) -> int:
    """Return the index of the first window with the guest's writes: it stores more per touch."""
    ends = windows[0].stores, windows[-1].stores
    return next(i for i, window in enumerate(windows) if window.stores > ends[0] + (ends[1] - ends[0]) / 4)


def phases(windows: list[Window]) -> dict[str, list[Window]]:
    """Return the windows while the guest reads, begins to write, and has been writing for long."""
    at = first_written(windows)
    # Without the first window: code is translated anew while the meter is just on.
    return {"read": windows[1:at], "storm": windows[at : at + 2], "later": windows[-LAST:]}


def figures(value: list[Window], control: list[Window], name: str) -> dict[str, Any]:
    """Return the guest's speed and the cost of its touches in one phase."""

    def compared(of: Callable[[Window], float], unit: str) -> dict[str, Any]:
        mine, theirs = (statistics.mean(of(window) for window in windows) for windows in (value, control))
        return {"value": mine, "control": theirs, "ratio": mine / theirs, "unit": unit}

    return {
        f"written_table_{name}": compared(lambda window: window.touches_per_s, "touches/s"),
        f"written_table_{name}_instructions": compared(lambda window: window.instructions, UNIT),
    }


def written_table() -> dict[str, Any]:
    """Return the figures; tells the windows on standard error."""
    stage = prepare_stage(read_scenario("shared-table-written"), Progress())
    seen = {name: watch(stage, name) for name in MANAGED}
    for name, windows in seen.items():
        told = (f"{one.touches_per_s:.0f}/{one.instructions:.0f}/{one.lar or 0:.2f}" for one in windows)
        print(name, *told, file=sys.stderr)
    value, control = (phases(seen[name]) for name in MANAGED)
    return {key: one for name in value for key, one in figures(value[name], control[name], name).items()}


if __name__ == "__main__":
    json.dump(written_table(), sys.stdout, indent=1)
