"""How do people and programs talk to the running agent?  A UNIX socket, served by a thread of its own.

Whoever may open the socket (root and group vmplace, by its mode) may look; only root may act, by the
credentials the kernel tells (SO_PEERCRED).  A client that says nothing, too much, or does not listen is
dropped by deadline; it never holds up another client, nor the loop.  Nor do files that it sends (closing.py).

The kernel has whoever connects wait in turn, and refuses who does not wait: whoever may look can keep the
queue full.  So root has another path (agent_socket.py), which only root may open.
"""

import contextlib
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from vmplace.errors import VmplaceError
from vmplace.interfaces.agent_socket import roots_path
from vmplace.interfaces.closing import CLOGGED_S, MOST_FILES, Closers
from vmplace.interfaces.control_place import SocketPlace
from vmplace.interfaces.protocol import (
    MAX_REQUEST_BYTES,
    Request,
    Response,
    as_text,
    encoded,
    parse_request,
    refusal,
)
from vmplace.users import owner_of

LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
MAX_CONNECTIONS_PER_UID = 8
REQUEST_S = 5.0
ANSWER_S = 300.0
RESPONSE_S = 10.0
LOOK_S = 10.0
"""How often to check that the socket is still there."""
REQUESTS_PER_S, MOST_REQUESTS = 20.0, 60.0
"""For each user but root: in the long run, and at once.  Connections beyond that are refused."""
SENT_AWAY_S = 0.005
"""The server pauses this long for each that it refuses, so that a flood takes a percent of a CPU, not all."""


@dataclass(frozen=True)
class Peer:
    """The process at the other end, as the kernel reports it."""

    pid: int
    uid: int
    gid: int

    @property
    def user(self) -> int:
        """Return the user that it counts for: the owner of a subordinate id, else the id itself."""
        return owner_of(self.uid) if self.uid else 0


Answer = Response | Future[Response]
Answerer = Callable[[Peer, Request], Answer]


@dataclass
class _Connection:
    sock: socket.socket
    peer: Peer
    deadline: float
    heard: bytearray = field(default_factory=bytearray)
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    is_answered: bool = False


@dataclass
class _Allowance:
    """How often a user may still ask now (a token bucket)."""

    left: float = MOST_REQUESTS
    at_s: float = 0.0

    def take(self, now_s: float) -> bool:
        self.left = min(self.left + (now_s - self.at_s) * REQUESTS_PER_S, MOST_REQUESTS)
        self.at_s = now_s
        if self.left < 1:
            return False
        self.left -= 1
        return True


class ControlServer:
    """Serve ``path`` from ``start`` until ``close``; ``answer`` is called on the server's thread."""

    def __init__(self, path: Path, answer: Answerer) -> None:
        self._answer = answer
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}
        self._places = [SocketPlace(path)]
        try:
            self._places.append(SocketPlace(roots_path(path), group=None))
        except BaseException:
            self._places[0].close()
            raise
        self._allowances: dict[int, _Allowance] = {}
        self._closers = Closers(apart=self._places[0].takes_files)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closing = False
        self._finished: list[tuple[_Connection, Response]] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        for place in self._places:
            self._selector.register(place.listener, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and remove the socket, unless another's stands in its place."""
        self._is_closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * RESPONSE_S)
        for place in self._places:
            place.close()
        self._selector.close()
        with self._lock:
            fd, self._wakeup = self._wakeup, -1
            if fd >= 0:
                os.close(fd)

    def _wake(self) -> None:
        """Wake the server's thread; after ``close`` the descriptor's number may be another file's."""
        with self._lock:
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._turn(LOOK_S)
                self._stay_findable()
                self._shut_or_open()
            # Orders that the stopping loop refused still get that answer.
            end = time.monotonic() + 1
            while time.monotonic() < end and any(
                c.unsent or c.is_answered for c in self._connections.values()
            ):
                self._turn(0.05)
        finally:
            for connection in tuple(self._connections.values()):
                self._drop(connection)

    def _stay_findable(self) -> None:
        """Serve under the path again if somebody removed it; raises VmplaceError where that cannot be."""
        for place in self._places:
            if self._is_closing or place.is_ours():
                continue
            LOG.warning("the socket %s was removed: it is made anew", place.path)
            with contextlib.suppress(KeyError):
                self._selector.unregister(place.listener)
            place.listener.close()
            place.take()
            self._selector.register(place.listener, selectors.EVENT_READ)

    def _shut_or_open(self) -> None:
        """Take no connections but root's while too many descriptors that clients sent wait to be closed."""
        listener, is_full = self._places[0].listener, self._closers.are_full()
        if is_full == (listener in self._selector.get_map()):
            if is_full:
                LOG.error(
                    "the socket %s takes no connections: files that clients sent do not close",
                    self._places[0].path,
                )
                self._selector.unregister(listener)
            else:
                self._selector.register(listener, selectors.EVENT_READ)

    def _turn(self, longest_s: float) -> None:
        now = time.monotonic()
        deadlines = (connection.deadline - now for connection in self._connections.values())
        for key, _ in self._selector.select(max(0.0, min([longest_s, *deadlines]))):
            try:
                self._serve(key)
            except Exception as err:
                # An error costs this connection alone.
                LOG.error("a connection failed", exc_info=err)
                if connection := self._connections.get(key.fd):
                    self._drop(connection)
        now = time.monotonic()
        for connection in [c for c in self._connections.values() if c.deadline <= now]:
            self._drop(connection)

    def _serve(self, key: selectors.SelectorKey) -> None:
        listener = next((one.listener for one in self._places if one.listener is key.fileobj), None)
        if listener is not None:
            self._accept(listener)
        elif key.fd == self._wakeup:
            self._deliver()
        elif key.fd in self._connections:
            self._exchange(self._connections[key.fd])

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            # Out of descriptors: the pending client stays in the queue, so do not spin on it.
            time.sleep(0.05)
            return
        sock.setblocking(False)
        peer = peer_of(sock)
        is_clogged = self._closers.are_clogged(peer.user)
        if is_clogged or not self._may_ask(peer.user):
            with contextlib.suppress(OSError):
                sock.send(encoded(refusal("busy", "too many requests", "ask less often")))
            self._closers.close(peer.user, sock.detach())
            time.sleep(CLOGGED_S if is_clogged else SENT_AWAY_S)
            return
        connection = _Connection(sock, peer, time.monotonic() + REQUEST_S)
        self._connections[sock.fileno()] = connection
        self._selector.register(sock, selectors.EVENT_READ)
        if self._is_crowded(peer.user):
            self._send(connection, refusal("busy", "too many connections", "try again in a few seconds"))

    def _may_ask(self, user: int) -> bool:
        """Tell whether the user has not asked too often; root always may."""
        if user == 0:
            return True
        if len(self._allowances) > 1000:
            self._allowances.clear()
        return self._allowances.setdefault(user, _Allowance()).take(time.monotonic())

    def _is_crowded(self, user: int) -> bool:
        of_user = sum(connection.peer.user == user for connection in self._connections.values())
        # Root keeps room of its own, so that others cannot lock it out.
        most = MAX_CONNECTIONS + MAX_CONNECTIONS_PER_UID if user == 0 else MAX_CONNECTIONS
        return of_user > MAX_CONNECTIONS_PER_UID or len(self._connections) > most

    def _exchange(self, connection: _Connection) -> None:
        try:
            if connection.unsent:
                self._flush(connection)
            else:
                self._hear(connection)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)

    def _hear(self, connection: _Connection) -> None:
        flags = socket.MSG_CMSG_CLOEXEC
        heard, files, _, _ = socket.recv_fds(connection.sock, MAX_REQUEST_BYTES, MOST_FILES, flags)
        self._closers.close(connection.peer.user, *files)
        if files or not heard:
            self._drop(connection)
            return
        connection.heard += heard
        line, newline, _ = bytes(connection.heard).partition(b"\n")
        if len(line) > MAX_REQUEST_BYTES:
            self._send(connection, refusal("request", f"a request has at most {MAX_REQUEST_BYTES} bytes"))
        elif newline:
            self._ask(connection, line)

    def _ask(self, connection: _Connection, line: bytes) -> None:
        request = parse_request(line)
        is_text = isinstance(request, Request) and request.as_text
        answer = request if isinstance(request, Response) else self._answered(connection.peer, request)
        if isinstance(answer, Response):
            self._send(connection, as_text(answer) if is_text else answer)
            return
        connection.is_answered = True
        connection.deadline = time.monotonic() + ANSWER_S
        # Its end of file is ignored meanwhile: `socat -` closes its half at once, and still gets the answer.
        self._selector.unregister(connection.sock)
        answer.add_done_callback(lambda done: self._finish(connection, done))

    def _answered(self, peer: Peer, request: Request) -> Answer:
        try:
            return self._answer(peer, request)
        except Exception as err:
            return _failure(err)

    def _finish(self, connection: _Connection, done: "Future[Response]") -> None:
        """Hand a late answer over; called on whatever thread finished it."""
        err = done.exception()
        with self._lock:
            self._finished.append((connection, done.result() if err is None else _failure(err)))
        self._wake()

    def _deliver(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        with self._lock:
            finished, self._finished = self._finished, []
        for connection, response in finished:
            if self._connections.get(connection.sock.fileno()) is connection:
                self._send(connection, response)

    def _send(self, connection: _Connection, response: Response) -> None:
        connection.unsent = memoryview(encoded(response))
        connection.is_answered = True
        connection.deadline = time.monotonic() + RESPONSE_S
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.sock)
        self._selector.register(connection.sock, selectors.EVENT_WRITE)

    def _flush(self, connection: _Connection) -> None:
        sent = connection.sock.send(connection.unsent)
        connection.unsent = connection.unsent[sent:]
        if not connection.unsent:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        fd = connection.sock.fileno()
        if self._connections.pop(fd, None) is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(connection.sock)
            self._closers.close(connection.peer.user, connection.sock.detach())


def peer_of(sock: socket.socket) -> Peer:
    """Return who connected, as the kernel noted at connect(2)."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return Peer(*struct.unpack("3i", credentials))


def _failure(err: BaseException) -> Response:
    if isinstance(err, VmplaceError):
        return refusal("failed", str(err), err.hint)
    LOG.error("control request failed", exc_info=err)
    return refusal("failed", f"{type(err).__name__}: {err}", "see the agent's log")
