"""Receive news from libvirt: a datagram socket, and a process that watches libvirt's events.

Only root may send, as the kernel confirms (SCM_CREDENTIALS): libvirt's hook and the watching process.  A
thread of its own reads the datagrams, so that senders never wait, even during a storm or while the loop is
busy.
"""

import contextlib
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from vmplace.agent.news import MOST_BYTES, News, parse_news
from vmplace.errors import VmplaceError
from vmplace.topology.guests_libvirt import EventWatch

LOG = logging.getLogger(__name__)
NAME = "hook.sock"
RETRY_S, MOST_RETRY_S = 5.0, 80.0
"""A watching process that ends at once, as all do while libvirtd is away, is started again less and less
often: each costs a tenth of a second of CPU."""
Watching = Callable[[Path], EventWatch]


def hook_path(control_socket: str) -> Path:
    """Return where the hook's datagrams are read: beside the control socket."""
    return Path(control_socket).with_name(NAME)


class HookSocket:
    """Hands what comes to ``tell``, from ``start`` until ``close``; keeps ``watching`` alive, if given."""

    def __init__(
        self,
        path: Path,
        tell: Callable[[News], None],
        watching: Watching | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises VmplaceError if the socket cannot be made."""
        self._path, self._tell, self._watching = path, tell, watching
        self._socket = _bound(path)
        self._inode = path.stat().st_ino
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watcher: EventWatch | None = None
        self._clock = clock
        self._retry_at, self._pause_s = 0.0, RETRY_S
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="hook", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, end the watching process, remove the socket unless another's is in its place."""
        self._is_closing = True
        os.eventfd_write(self._wakeup, 1)
        if self._thread.is_alive():
            self._thread.join(timeout=2)
        self._socket.close()
        os.close(self._wakeup)
        self._end_watcher()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            while not self._is_closing:
                self._keep_watching()
                for key, _ in selector.select(RETRY_S):
                    if key.fileobj is self._socket:
                        self._receive()

    def _receive(self) -> None:
        for datagram, uid in _iter_received(self._socket):
            news = parse_news(datagram)
            if uid != 0 or news is None:
                LOG.debug("a datagram of uid %s is ignored", uid)
                continue
            LOG.info('guest=%s libvirt=%s reason="libvirt reported it"', news.guest, news.operation)
            self._tell(news)

    def _keep_watching(self) -> None:
        """Start the watching process again when it has ended, as it does with libvirtd."""
        if self._watching is None or (self._watcher and self._watcher.is_alive()):
            return
        now = self._clock()
        if now < self._retry_at:
            return
        # One that lived for a while had found libvirtd.
        has_lived = now - self._retry_at > MOST_RETRY_S
        self._pause_s = RETRY_S if has_lived else min(self._pause_s * 2, MOST_RETRY_S)
        self._retry_at = now + self._pause_s
        self._end_watcher()
        with contextlib.suppress(VmplaceError):
            self._watcher = self._watching(self._path)

    def _end_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.end()


def _iter_received(sock: socket.socket) -> Iterable[tuple[bytes, int | None]]:
    """Yield what waits, with the uid of each sender, None if the kernel does not tell."""
    space = socket.CMSG_SPACE(struct.calcsize("3i"))
    while True:
        try:
            datagram, controls, _, _ = sock.recvmsg(MOST_BYTES + 1, space)
        except BlockingIOError:
            return
        uids = [
            struct.unpack("3i", data)[1]
            for level, kind, data in controls
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        ]
        yield datagram, uids[0] if uids else None


def _is_heard(path: Path) -> bool:
    """Tell whether somebody listens at ``path``: an agent with a state directory of its own may."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(str(path)) == 0


def _bound(path: Path) -> socket.socket:
    """Return the socket at ``path``, 0600; a stale one is replaced, one that is served never is."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path.exists() and not path.is_socket():
        raise VmplaceError(f"{path} is not a socket", hint="remove it")
    if _is_heard(path):
        hint = "stop that agent, or give this one a socket in another directory in vmplace.toml, key socket"
        raise VmplaceError(f"another agent listens at {path}", hint=hint)
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.bind(str(path))
        path.chmod(0o600)
    except OSError as err:
        sock.close()
        why = err.strerror or err
        raise VmplaceError(f"cannot listen at {path}: {why}", hint="run the agent as root") from err
    return sock
