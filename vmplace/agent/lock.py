"""Allow one agent on a host, and find out whether the last one ended cleanly."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from vmplace.errors import DeniedError, VmplaceError, only_root_may


class AgentBusyError(VmplaceError):
    """Another agent runs; callers talk to it instead."""


class AgentLock:
    """An flock'ed file in the state directory that holds the agent's pid while it runs.

    The kernel drops the lock of a killed agent but leaves the pid: that is how the next one knows.  It stays
    there beside that of the next until what it left is taken over (``settled``).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._killed: int | None = None

    def take(self) -> int | None:
        """Take the lock; return the pid of an agent that did not end cleanly, or None.

        Raises AgentBusyError while another agent holds it.
        """
        self._open()
        try:
            # If that agent was killed before it took over what an earlier one left, report the earlier one.
            self._killed = next(reversed(self._pids()), None)
            self._write(os.getpid(), self._killed)
        except BaseException:
            self._close()
            raise
        return self._killed

    def settled(self) -> None:
        """Note that what a killed agent left was reported: the next agent need not do so again."""
        self._killed = None
        self._write(os.getpid())

    def release(self) -> None:
        """Say that this agent ended cleanly, and let the next one in."""
        if self._fd >= 0:
            try:
                self._write(self._killed)
            finally:
                self._close()

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._path, flags, 0o640)
        except OSError as err:
            kind = DeniedError if only_root_may(err) else VmplaceError
            raise kind(f"cannot open {self._path}: {err.strerror}", hint="run it as root") from err
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            holder = next(iter(self._pids()), "unknown")
            self._close()
            raise AgentBusyError(
                f"an agent runs (pid {holder})",
                hint="ask it with `vmplace status`, or stop it: systemctl stop vmplace",
            ) from err

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[None]:
        """Keep agents away for a while without being one: a killed agent stays noted for the next."""
        self._open()
        try:
            yield
        finally:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    def _pids(self) -> tuple[int, ...]:
        """Return the pids of the first line: of the agent that wrote it, and of a killed one before it."""
        line, _, _ = os.pread(self._fd, 64, 0).partition(b"\n")
        return tuple(int(word) for word in line.split() if word.isdigit())

    def _write(self, *pids: int | None) -> None:
        """Put the pids in the place of those that are there; a full disk costs none of them."""
        line = " ".join(str(pid) for pid in pids if pid is not None).encode()
        try:
            # Written before anything is cut off, and in one piece: readers look at the first line alone.
            if line:
                os.pwrite(self._fd, line + b"\n", 0)
            os.ftruncate(self._fd, len(line) + 1 if line else 0)
        except OSError as err:
            raise VmplaceError(
                f"cannot write {self._path}: {err.strerror}", hint="free some space, or make it writable"
            ) from err
