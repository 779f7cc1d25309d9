"""Who is the one agent of this host, and did the last one end cleanly?"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from vmplace.errors import VmplaceError


class AgentBusyError(VmplaceError):
    """Another agent runs; callers talk to it instead."""


class AgentLock:
    """An flock'ed file in the state directory that holds the agent's pid while it runs.

    The kernel drops the lock of a killed agent but leaves the pid: that is how the next one knows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> int | None:
        """Take the lock; return the pid of an agent that did not end cleanly, or None.

        Raises AgentBusyError while another agent holds it.
        """
        self._open()
        killed = self._pid()
        self._write(str(os.getpid()))
        return killed

    def release(self) -> None:
        """Say that this agent ended cleanly, and let the next one in."""
        if self._fd >= 0:
            self._write("")
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as err:
            raise VmplaceError(f"cannot open {self._path}: {err.strerror}", hint="run it as root") from err
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            holder = self._pid()
            os.close(self._fd)
            self._fd = -1
            raise AgentBusyError(
                f"an agent runs (pid {holder or 'unknown'})",
                hint="ask it with `vmplace status`, or stop it: systemctl stop vmplace",
            ) from err

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[None]:
        """Keep agents away for a while without being one: a killed agent stays noted for the next."""
        self._open()
        try:
            yield
        finally:
            os.close(self._fd)
            self._fd = -1

    def _pid(self) -> int | None:
        text = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None

    def _write(self, text: str) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode(), 0)
