"""What does somebody without rights see?  Asked in a process that has given its own up."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

NOBODY = 65534
needs_nobody = pytest.mark.skipif(
    os.getuid() != 0 or not Path("/").stat().st_mode & 0o001,
    reason="needs root, to give it up, and a root folder that others may enter",
)


def holds_for_nobody(question: Callable[[], bool]) -> bool:
    """Return whether ``question`` is answered with yes; the process that asks never comes back as a test."""
    pid = os.fork()
    if not pid:
        answer = False
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = question()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0 if answer else 1)
    return os.waitpid(pid, 0)[1] == 0
