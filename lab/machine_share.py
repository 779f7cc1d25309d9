"""What share of this machine could the emulated host have?  What other processes did not use: /proc/stat.

Eight emulated CPUs wait for each other on a machine of two; only what others take makes it slower than it is.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.errors import TooSlowError
from lab.progress import Progress
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
LOOK_S = 5.0
AWAIT_S = 60.0
"""A build or a test of somebody else may end by then."""


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


def await_free_machine(
    progress: Progress,
    read: Callable[[], MachineTimes] = lambda: read_machine_times(os.getpid()),
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Wait until others leave enough of this machine for a verdict.

    Raises TooSlowError where they do not for ``AWAIT_S``: what runs beside them would end undecided.
    """
    share = _share_left(read, sleep)
    if share >= FREE:
        return
    with progress.step(f"others use {1 - share:.0%} of this machine: wait for it"):
        for _ in range(round(AWAIT_S / LOOK_S)):
            share = _share_left(read, sleep)
            if share >= FREE:
                return
        raise TooSlowError(f"others use {1 - share:.0%} of it, and a verdict needs {FREE:.0%}")


def _share_left(read: Callable[[], MachineTimes], sleep: Callable[[float], object]) -> float:
    before = read()
    sleep(LOOK_S)
    return machine_share(before, read())
