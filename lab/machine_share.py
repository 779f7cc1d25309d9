"""What share of this machine could the emulated host have?  What other processes did not use: /proc/stat.

Eight emulated CPUs wait for each other on a machine of two; only what others take makes it slower than it is.
"""

from dataclasses import dataclass
from pathlib import Path

from vmplace.topology.procfs import read_cpu_seconds

CLOCK_TICKS_PER_S = 100
"""USER_HZ: the unit of times in /proc/stat on x86."""
SHORT_S = 0.5
"""CPU seconds of which a tick here and there would be much."""
FREE = 0.7
"""A machine of which others left this much is free enough to judge what ran on it.

Guests are asked for at most half of what they can do (SHARE in scenario_speed.py): of 70 % of the machine
they need 50, and a manager has the other 20.
"""


@dataclass(frozen=True)
class MachineTimes:
    """CPU seconds of the machine since its boot: all there were, those used, and the emulator's own."""

    all_s: float
    used_s: float
    own_s: float


def read_machine_times(emulator_pid: int, proc: Path = Path("/proc")) -> MachineTimes:
    """Return the times so far."""
    ticks = [int(word) for word in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    total_s, used_s = sum(ticks) / CLOCK_TICKS_PER_S, (sum(ticks) - idle) / CLOCK_TICKS_PER_S
    return MachineTimes(total_s, used_s, read_cpu_seconds(emulator_pid, proc))


def machine_share(before: MachineTimes, after: MachineTimes) -> float:
    """Return the share of the machine that others left; 1 for a time too short to tell."""
    passed = after.all_s - before.all_s
    others = (after.used_s - before.used_s) - (after.own_s - before.own_s)
    return 1 - min(max(others / passed, 0.0), 1.0) if passed > SHORT_S else 1.0
