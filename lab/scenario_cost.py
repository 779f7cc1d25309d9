"""What does a manager that is there cost the guests, once memory is placed?

All guests work as fast as they can, with the meter off, in turns with the manager running and stopped.  What
they do is per second of CPU time that the emulator got, so that the machine's other work matters little.

A guest that a manager makes wait leaves its CPU to the others, so their work hides what it loses.  The guest
that loses most is therefore looked at by itself, too.
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
    """Work by guest, in their declared seconds, and the emulator's CPU time for all of it."""

    work_s: Mapping[int, float]
    cpu_s: float

    def speed(self, guest: int | None = None) -> float:
        """Return the work of a guest, or of all together, per second of CPU time."""
        work_s = sum(self.work_s.values()) if guest is None else self.work_s[guest]
        return work_s / self.cpu_s if self.cpu_s else 0.0


@dataclass(frozen=True)
class Cost:
    """Shares of work that are lost to a running manager: of all guests, and of the one that loses most."""

    share: float | None = None
    worst_share: float | None = None


def measured_cost(host: LabHost, manager: Manager, seconds: float, rates: Mapping[int, float]) -> Cost:
    """Return the shares of the guests' work that are lost to a running manager; it runs before and after.

    It runs first and last, so that a machine that gets faster or slower meanwhile favours neither.
    """
    running = [_spell(host, seconds, rates)]
    manager.pause()
    stopped = [_spell(host, seconds, rates) for _ in range(2)]
    manager.resume()
    running.append(_spell(host, seconds, rates))
    worst = [cost_of(running, stopped, guest) for guest in rates]
    known = [share for share in worst if share is not None]
    return Cost(cost_of(running, stopped), max(known) if known and len(known) == len(worst) else None)


def cost_of(running: list[Spell], stopped: list[Spell], guest: int | None = None) -> float | None:
    """Return by how much work is slower in the first spells than in the second ones, as a share."""
    fast = sum(spell.speed(guest) for spell in stopped)
    return 1 - sum(spell.speed(guest) for spell in running) / fast if fast else None


def _spell(host: LabHost, seconds: float, rates: Mapping[int, float]) -> Spell:
    with MeterCounters(host.shared_memory) as meter:
        used, earlier = read_cpu_seconds(host.emulator_pid), meter.read()
        time.sleep(seconds)
        work, cpu_s = meter.read().since(earlier).work, read_cpu_seconds(host.emulator_pid) - used
    return Spell({guest: float(work[guest].sum()) / rate for guest, rate in rates.items()}, cpu_s)
