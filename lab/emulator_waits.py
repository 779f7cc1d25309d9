"""How long did the emulator wait for CPUs of the machine outside?  /proc/PID/task/TID/schedstat.

A window in which guests are late says by this whether others took the machine, or the emulated host itself
kept its CPUs from the guests.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CpuTimes:
    """Of all threads of the emulator, most of which are emulated CPUs, in seconds since it began."""

    ran_s: float
    waited_s: float


def read_cpu_times(emulator_pid: int, proc: Path = Path("/proc")) -> CpuTimes:
    """Return the times so far; a thread that ended takes its own along."""
    told = [path.read_text().split() for path in (proc / str(emulator_pid) / "task").glob("*/schedstat")]
    return CpuTimes(sum(int(ran) for ran, *_ in told) / 1e9, sum(int(waited) for _, waited, _ in told) / 1e9)


def waited_share(before: CpuTimes, after: CpuTimes) -> float | None:
    """Return which share of the time in which its threads had something to do they waited for a CPU."""
    ran, waited = after.ran_s - before.ran_s, after.waited_s - before.waited_s
    return waited / (ran + waited) if ran + waited > 0 else None
