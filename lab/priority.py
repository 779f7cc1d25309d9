"""Let the emulator run before what else runs on this machine.

Eight emulated CPUs wait for each other: where one of them waits for a real CPU, all do, and guests starve.

1. Linux shares CPUs between sessions first (sched(7), autogroup), whatever the nice values of their
   processes: one busy process of another session, at nice 19, has as much as the whole emulator.  Only a
   session's own nice value counts against others'.
2. Where there are no autogroups, the nice value of the processes does.
3. In a cgroup with a CPU controller of its own (systemd's slices, containers), neither counts against others
   outside of it.
4. Who gave the lab a nice value of its own wants it to wait, and it does.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

NICE = -10
"""Nine times the weight of others at 0 (sched_prio_to_weight in kernel/sched/core.c): they keep a tenth."""


def preferred(command: Sequence[str]) -> list[str]:
    """Return the command with a nice value of its own; without the right to have it, it runs all the same."""
    return list(command) if is_to_wait() else ["nice", "-n", str(NICE), *command]


def prefer_session(pid: int, proc: Path = Path("/proc")) -> None:
    """Give the session of the process its nice value, where there are autogroups."""
    if is_to_wait():
        return
    with contextlib.suppress(OSError):
        (proc / str(pid) / "autogroup").write_text(f"{NICE}")


def is_to_wait() -> bool:
    """Return whether this process was given a nice value that lets others come first."""
    return os.nice(0) > 0
