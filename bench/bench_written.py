"""What do replicas cost a guest that begins to write what it only read before?

Scenario shared-table-written, once with vmplace and once with nobody, from the same start.  Windows of
WINDOW_S run from before the guest begins to write until the replicas are long gone; in each, all that the
host's CPUs executed, for the guest and otherwise, over the touches that the guest made.

written_table_read   windows before the first write
written_table_storm  the window of the first writes: each page collapses, once
written_table_later  the windows after that

Prints {NAME: {value, control, ratio, unit}}, and on standard error each window: instructions per touch / LAR.
"""

import json
import statistics
import sys
import time
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
WINDOWS = 12
UNIT = "instructions of the host's CPUs per touch of the guest"


@dataclass(frozen=True)
class Window:
    """One window: instructions and stores of the guest per touch, and its local access ratio."""

    instructions: float
    stores: float
    lar: float | None


def window_of(growth: MeterReading) -> Window:
    """Return what the meter's growth says."""
    touches = int(growth.work[GUEST].sum())
    return Window(
        float(growth.instructions.sum()) / touches,
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
        time.sleep(max(0.0, started + FIRST_S - time.monotonic()))
        host.run(["vmp-meter", "on"])
        with MeterCounters(host.shared_memory) as meter:
            readings = [meter.read()]
            for _ in range(WINDOWS):
                time.sleep(WINDOW_S)
                readings.append(meter.read())
        manager.stop()
    return [window_of(new.since(old)) for old, new in pairwise(readings)]


def first_written(windows: list[Window]) -> int:
    """Return the index of the first window with the guest's writes: it stores more per touch."""
    ends = windows[0].stores, windows[-1].stores
    return next(i for i, window in enumerate(windows) if window.stores > ends[0] + (ends[1] - ends[0]) / 4)


def phases(windows: list[Window]) -> dict[str, float]:
    """Return the instructions per touch while the guest reads, begins to write, and writes."""
    at = first_written(windows)
    costs = [window.instructions for window in windows]
    return {
        # Without the first window: code is translated anew while the meter is just on.
        "read": statistics.median(costs[1:at]),
        "storm": statistics.mean(costs[at : at + 2]),
        "later": statistics.median(costs[at + 2 :]),
    }


def written_table() -> dict[str, Any]:
    """Return the figures; tells the windows on standard error."""
    stage = prepare_stage(read_scenario("shared-table-written"), Progress())
    seen = {name: watch(stage, name) for name in MANAGED}
    for name, windows in seen.items():
        print(name, *(f"{one.instructions:.0f}/{one.lar or 0:.2f}" for one in windows), file=sys.stderr)
    value, control = (phases(seen[name]) for name in MANAGED)
    return {
        f"written_table_{name}": {
            "value": value[name],
            "control": control[name],
            "ratio": value[name] / control[name],
            "unit": UNIT,
        }
        for name in value
    }


if __name__ == "__main__":
    json.dump(written_table(), sys.stdout, indent=1)
