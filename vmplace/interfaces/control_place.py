"""Take the path of the control socket, under the lock beside it, if no agent answers there.

A socket that a killed agent left is replaced; one that is served never is.
"""

import contextlib
import errno
import fcntl
import grp
import os
import socket
from pathlib import Path

from vmplace.errors import VmplaceError

GROUP = "vmplace"
BACKLOG = 32
SO_PASSRIGHTS = 83
"""asm-generic/socket.h, from Linux 6.16 on; what is accepted has it from what listens."""


class SocketPlace:
    """A listening socket at ``path``, 0660 root:GROUP, or 0600 without that group."""

    def __init__(self, path: Path, group: str | None = GROUP) -> None:
        """Raises VmplaceError if the path is another's, or cannot be served."""
        self.path, self._group = path, group
        self._lock_path = path.with_name(path.name + ".lock")
        self._lock = -1
        self.takes_files = True
        """Whether clients may send descriptors along."""
        self.take()

    def take(self) -> None:
        """Take the path, for the first time or again after somebody removed it."""
        self._let_go()
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock = self._locked()
            self.listener = self._listening()
            self._inode = self.path.stat().st_ino
        except OSError as err:
            self._let_go()
            raise VmplaceError(
                f"cannot serve {self.path}: {err.strerror or err}", hint="run the agent as root"
            ) from err
        except VmplaceError:
            self._let_go()
            raise

    def is_ours(self) -> bool:
        """Tell whether a connection to the path still reaches this socket."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Stop listening and remove the socket, unless another's stands in its place."""
        self.listener.close()
        with contextlib.suppress(OSError):
            if self.is_ours():
                self.path.unlink()
            if self._is_locked(self._lock):
                self._lock_path.unlink()
        self._let_go()

    def _let_go(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _locked(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            fd = os.open(self._lock_path, flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                os.close(fd)
                raise _taken(self.path) from err
            # The last agent removes the file as it ends, so this one may be another than that at the path.
            if self._is_locked(fd):
                return fd
            os.close(fd)

    def _is_locked(self, fd: int) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(fd), self._lock_path.stat())
        return False

    def _listening(self) -> socket.socket:
        path = self.path
        if path.exists() and not path.is_socket():
            hint = "give another path in vmplace.toml, key socket"
            raise VmplaceError(f"{path} is not a socket", hint=hint)
        if is_served(path):
            raise _taken(path)
        path.unlink(missing_ok=True)
        kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        sock = socket.socket(socket.AF_UNIX, kind)
        try:
            # No client needs to send files.  Before 6.16 they cannot be refused: closing.py closes them.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
                self.takes_files = False
            # By chmod, as the umask is one for all threads.  Nobody can connect before listen().
            sock.bind(str(path))
            path.chmod(0o600)
            if self._group is not None:
                with contextlib.suppress(KeyError, PermissionError):
                    os.chown(path, -1, grp.getgrnam(self._group).gr_gid)
                    path.chmod(0o660)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
        return sock


def is_served(path: Path) -> bool:
    """Tell whether somebody listens at ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        # EAGAIN: somebody listens, and its queue is full.
        return probe.connect_ex(str(path)) in (0, errno.EAGAIN)


def _taken(path: Path) -> VmplaceError:
    hint = "stop that agent, or give this one another path in vmplace.toml, key socket"
    return VmplaceError(f"another agent serves {path}", hint=hint)
