"""The agent writes no core dump: one would wait for all threads, with all that they have open.

A thread that waits in exit_aio (step_thread.py) never comes, and then not even SIGKILL ends the others
(Linux 6.18: coredump_wait).  systemd's watchdog sends SIGABRT, which asks for a dump; so does a crash.  Its
size does not matter: with RLIMIT_CORE 0 the kernel waits all the same.
"""

import contextlib
import ctypes
from collections.abc import Iterator

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
"""<linux/prctl.h>"""


@contextlib.contextmanager
def no_core_dumps() -> Iterator[None]:
    """While inside, signals that would dump this process just end it; only root may trace it."""
    before = _prctl(PR_GET_DUMPABLE)
    _prctl(PR_SET_DUMPABLE, 0)
    try:
        yield
    finally:
        _prctl(PR_SET_DUMPABLE, before)


def _prctl(option: int, value: int = 0) -> int:
    return int(ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))))
