"""May nothing else on this machine hold up the emulated host that is measured?"""

import os
from pathlib import Path

from lab.machine import LabHost


def undisturb(host: LabHost) -> None:
    """Let no other program take the machine's CPUs from the emulator; needs root.

    Else the longest touches are those whose emulated CPU waited for a real one, whoever moves the pages.
    The thread that rings the timers comes before the emulated CPUs.
    """
    main = host.emulator_pid
    for thread in (int(task.name) for task in Path(f"/proc/{main}/task").iterdir()):
        os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(2 if thread == main else 1))
