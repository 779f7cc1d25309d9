"""What does a manager that is there cost the guests, once memory is placed?

All guests work as fast as they can, with the meter off, in turns with the manager running and stopped.  What
they do is per second of CPU time that the emulator got, so that the machine's other work matters little.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from lab.counters_meter import MeterCounters
from lab.machine import LabHost
from lab.scenario_managers import Manager
from vmplace.topology.procfs import read_cpu_seconds


@dataclass(frozen=True)
class Spell:
    """Work of all guests together, in their declared seconds, and the emulator's CPU time for it."""

    work_s: float
    cpu_s: float

    @property
    def speed(self) -> float:
        """Return the work per second of CPU time."""
        return self.work_s / self.cpu_s if self.cpu_s else 0.0


def measured_cost(
    host: LabHost, manager: Manager, seconds: float, rates: Mapping[int, float]
) -> float | None:
    """Return the share of the guests' work that is lost to a running manager; it runs before and after.

    It runs first and last, so that a machine that gets faster or slower meanwhile favours neither.
    """
    running = [_spell(host, seconds, rates)]
    manager.pause()
    stopped = [_spell(host, seconds, rates) for _ in range(2)]
    manager.resume()
    running.append(_spell(host, seconds, rates))
    return cost_of(running, stopped)


def cost_of(running: list[Spell], stopped: list[Spell]) -> float | None:
    """Return by how much work is slower in the first spells than in the second ones, as a share."""
    fast = sum(spell.speed for spell in stopped)
    return 1 - sum(spell.speed for spell in running) / fast if fast else None


def _spell(host: LabHost, seconds: float, rates: Mapping[int, float]) -> Spell:
    with MeterCounters(host.shared_memory) as meter:
        used, earlier = read_cpu_seconds(host.emulator_pid), meter.read()
        time.sleep(seconds)
        work, cpu_s = meter.read().since(earlier).work, read_cpu_seconds(host.emulator_pid) - used
    return Spell(sum(float(work[guest].sum()) / rate for guest, rate in rates.items()), cpu_s)
