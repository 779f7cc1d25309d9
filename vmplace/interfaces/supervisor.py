"""Who tells systemd that the agent has died, when the kernel cannot end one of its threads?

A thread that waits in exit_aio (held.py) keeps the agent's process from ending: nobody's waitpid(2) returns,
and systemd does not learn of it before its watchdog looks, some minutes later.  So a small process stands
between them.  It passes signals on, and ends as the agent ends, or some seconds after all of the agent but
such threads has ended.

The agent ends with it (PR_SET_PDEATHSIG).  So whoever kills the one kills the other, too.

Source: prctl(2), proc_pid_stat(5); Linux 6.12, delay_group_leader in kernel/exit.c.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import NoReturn

PASSED_ON = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
LOOK_S = 2.0
"""Threads that end take less than that."""
PR_SET_PDEATHSIG = 1
"""<linux/prctl.h>"""
WATCHDOG_PID = "WATCHDOG_PID"
STATE, EXIT_CODE = 0, 49
"""Of the fields of /proc/PID/stat that follow the name."""
LEFT = "vmplace: the agent has ended but for a thread that waits in the kernel; its process is left behind"


def supervised() -> None:
    """Return in a child that is to be the agent; the caller's process waits for it, and ends as it does."""
    # Where it is ignored, as a parent may have left it, nobody can wait for a child.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    parent, before = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    pid = os.fork()
    if pid:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _end_as(_wait_status(pid))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
    if WATCHDOG_PID in os.environ:
        os.environ[WATCHDOG_PID] = str(os.getpid())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_status(pid: int) -> int:
    """Wait for a child; return how it ended, as wait(2) has it."""
    was_dead = False
    while True:
        got = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, LOOK_S)
        if got is not None and got.si_signo in PASSED_ON:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, got.si_signo)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if got is None:
            is_dead, status = _leader(pid)
            if is_dead and was_dead:
                print(LEFT, file=sys.stderr)
                return status
            was_dead = is_dead


def _leader(pid: int) -> tuple[bool, int]:
    """Tell whether a child's first thread has ended, and how."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return fields[STATE] == b"Z", int(fields[EXIT_CODE])


def _end_as(status: int) -> NoReturn:
    """End as a child did: with its exit code, or by the same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            # Python has handlers for some.
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
