"""What do replicas cost a guest that begins to write what it only read before?

Scenarios shared-table-written (four nodes) and shared-table-written-n2, each once with vmplace and once with
nobody, from the same start.  Windows of WINDOW_S run from before the guest begins to write until the replicas
are long gone.  Each vCPU has a CPU for itself, the agent has the others: what these CPUs executed, for the
guest and for its faults, over the touches that the guest made, is what a touch costs the guest.

written_table_read   windows before the first write
written_table_storm  the two windows of the first writes: each page collapses, once
written_table_later  the last windows

``written_table_n2_*``: on two nodes, whose four CPUs nothing else on the machine holds up.  Eight emulated
CPUs on two real ones wait for each other more than the guest would on a real host.

written_table_storm_executed  the instructions a second of all CPUs, guest, kernel and agent, in these two
                     windows; control: with vmplace, too, before the first write.  What is more is what
                     collapsing takes, whoever does it and whoever waits for it.

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

from bench.undisturbed import undisturb
from vmplace.lab.machine import LabHost, boot_host
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
for cpu in {vcpus}; do virsh -q vcpupin {guest} $((cpu / 2)) $cpu --live; done
virsh -q emulatorpin {guest} {others} --live
for pid in $(pgrep -f 'vmplace agent'); do taskset -acp {others} $pid; done
"""
"""The scenarios' nodes have two CPUs each, their guests a vCPU on each node."""


@dataclass(frozen=True)
class Window:
    """One window: the guest's touches per second, what each took, its stores, its local access ratio.

    ``executed`` are the instructions per second of all CPUs, whoever had them execute these.
    """

    touches_per_s: float
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


def window_of(growth: MeterReading, seconds: float, cpus: list[int]) -> Window:
    """Return what the meter's growth says."""
    touches = int(growth.work[GUEST].sum())
    return Window(
        touches / seconds,
        float(growth.instructions[:, cpus].sum()) / touches,
        float(growth.stores[GUEST].sum()) / touches,
        local_access_ratio(counted_traffic(growth, GUEST)),
        float(growth.instructions.sum()) / seconds,
    )


def watch(stage: Stage, name: ManagerName, *, alone: bool) -> list[Window]:
    """Return all windows under one manager."""
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
        host.run(["vmp-meter", "on"])
        with MeterCounters(host.shared_memory) as meter:
            readings = [(time.monotonic(), meter.read())]
            for _ in range(WINDOWS):
                time.sleep(WINDOW_S)
                readings.append((time.monotonic(), meter.read()))
        manager.stop()
    cpus = vcpu_cpus(stage)
    return [window_of(new.since(old), at - before, cpus) for (before, old), (at, new) in pairwise(readings)]


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
    return _compared("shared-table-written", "", alone=False) | _compared(
        "shared-table-written-n2", "n2_", alone=True
    )


def _compared(scenario: str, prefix: str, *, alone: bool) -> dict[str, Any]:
    stage = prepare_stage(read_scenario(scenario), Progress())
    seen = {name: watch(stage, name, alone=alone) for name in MANAGED}
    for name, windows in seen.items():
        told = (f"{one.touches_per_s:.0f}/{one.instructions:.0f}/{one.lar or 0:.2f}" for one in windows)
        print(scenario, name, *told, file=sys.stderr)
    value, control = (phases(seen[name]) for name in MANAGED)
    told_of = {
        key: one
        for name in value
        for key, one in figures(value[name], control[name], f"{prefix}{name}").items()
    }
    return told_of | {f"written_table_{prefix}storm_executed": executed(value["storm"], value["read"])}


def executed(storm: list[Window], read: list[Window]) -> dict[str, Any]:
    """Return what all CPUs executed while pages collapse, beside what they executed before."""
    mine, before = (statistics.mean(one.executed for one in windows) for windows in (storm, read))
    return {"value": mine, "control": before, "ratio": mine / before, "unit": "instructions/s of all CPUs"}


if __name__ == "__main__":
    json.dump(written_table(), sys.stdout, indent=1)
