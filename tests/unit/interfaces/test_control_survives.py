"""Nothing that is asked, answered or done to its socket silences the agent."""

import contextlib
import errno
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.interfaces.test_control import connected, echo, talk
from tests.unit.nobody import NOBODY, needs_nobody
from vmplace.errors import VmplaceError
from vmplace.interfaces import agent_socket, control, control_place
from vmplace.interfaces.agent_socket import roots_path
from vmplace.interfaces.client import ask
from vmplace.interfaces.closing import MOST_UNCLOSED, Closers
from vmplace.interfaces.control import ControlServer, Peer
from vmplace.interfaces.protocol import MAX_REQUEST_BYTES, Request, Response

STATUS = b'{"command": "status"}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run/control.sock"


@pytest.fixture
def serve(path: Path) -> Iterator[Callable[..., ControlServer]]:
    servers: list[ControlServer] = []

    def start(answer: control.Answerer = echo) -> ControlServer:
        servers.append(ControlServer(path, answer))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_a_name_that_is_no_unicode_is_reported_with_question_marks(
    path: Path, serve: Callable[..., ControlServer]
):
    serve(lambda *_: Response(True, data={"notes": ["/pub/dev/vfio/\udcff is open"]}))
    for _ in range(2):
        assert talk(path, STATUS)["data"] == {"notes": ["/pub/dev/vfio/? is open"]}


@contextlib.contextmanager
def lingering() -> Iterator[socket.socket]:
    """Give a socket whose last close(2) waits for 600 s, or until the end of this."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        with peer:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
            sender.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sender.send(bytes(1 << 16))
            yield sender


@pytest.mark.parametrize("kernel", ["takes files", "refuses files"])
@pytest.mark.parametrize(
    "heard", [b"", STATUS.ljust(MAX_REQUEST_BYTES)], ids=["received", "behind what is answered"]
)
def test_a_file_that_never_closes_and_is_sent_along_silences_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, heard: bytes
):
    if kernel == "takes files":
        # An option that no kernel has.
        monkeypatch.setattr(control_place, "SO_PASSRIGHTS", 9999)
    server = ControlServer(path, echo)
    with lingering() as file, connected(path) as client:
        client.sendall(heard)
        if kernel == "takes files":
            socket.send_fds(client, [b"{"], [file.fileno()])
            # The other one is in the socket now, which nobody reads yet.
            file.close()
        elif server._places[0].takes_files:
            pytest.skip("Linux before 6.16 takes files in any case")
        else:
            with pytest.raises(PermissionError):
                socket.send_fds(client, [b"{"], [file.fileno()])
        server.start()
        began = time.monotonic()
        for _ in range(3):
            assert talk(path, STATUS)["ok"]
        server.close()
        assert time.monotonic() - began < 60


def test_what_does_not_close_keeps_nothing_of_others_open():
    closers = Closers()
    with lingering() as file:
        closers.close(1, file.detach())
        for _ in range(MOST_UNCLOSED + 1):
            closers.close(1, os.dup(0))
        assert closers.are_clogged(1) and not closers.are_clogged(2)
        reader, writer = os.pipe()
        closers.close(2, writer)
        with os.fdopen(reader, "rb") as end:
            assert select.select([end], [], [], 60)[0] and not end.read()
    until = time.monotonic() + 60
    while closers.are_clogged(1):
        assert time.monotonic() < until
        time.sleep(0.01)


@contextlib.contextmanager
def limited(descriptors: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_root_is_answered_while_too_much_that_clients_sent_does_not_close(
    path: Path, serve: Callable[..., ControlServer]
):
    server = serve()
    with contextlib.ExitStack() as stack:
        with lingering() as file, limited(descriptors := 512):
            # As on a kernel whose sockets cannot refuse files.
            server._closers = Closers()
            server._closers.close(1, file.detach())
            for _ in range(descriptors // 2 + 1):
                server._closers.close(1, os.dup(0))
            for _ in range(3):
                assert talk(roots_path(path), STATUS)["ok"]
            client = stack.enter_context(connected(path))
            client.sendall(STATUS)
            assert not select.select([client], [], [], 1.0)[0]
            assert talk(roots_path(path), STATUS)["ok"]
            assert server._closers.are_full()
        # Once it has closed, who waits is answered.
        assert select.select([client], [], [], 60)[0] and client.recv(1) == b"{"


def deep() -> Any:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    return nested


@pytest.mark.parametrize("data", [object(), {(1, 2): 3}, "deep"], ids=["object", "key", "deep"])
def test_an_answer_that_cannot_be_encoded_is_refused_and_the_next_is_given(
    path: Path, serve: Callable[..., ControlServer], data: Any
):
    reported = deep() if data == "deep" else data
    serve(lambda _peer, request: Response(True, data=reported if request.command == "status" else "sound"))
    refused = talk(path, STATUS)
    assert not refused["ok"] and "cannot be encoded" in refused["error"]
    assert talk(path, b'{"command": "plan"}\n')["data"] == "sound"


@pytest.mark.parametrize("method", ["_hear", "_flush", "_ask"])
def test_an_exception_costs_the_one_connection(
    path: Path, serve: Callable[..., ControlServer], monkeypatch: pytest.MonkeyPatch, method: str
):
    server, sound, calls = serve(), getattr(ControlServer, method), iter([True])

    def once(self: ControlServer, *args: Any) -> Any:
        if next(calls, False):
            raise ZeroDivisionError(method)
        return sound(self, *args)

    monkeypatch.setattr(ControlServer, method, once)
    with connected(path) as sock:
        sock.sendall(STATUS)
        with contextlib.suppress(ConnectionResetError):
            assert sock.makefile("rb").read() == b""
    assert talk(path, STATUS)["ok"] and server._thread.is_alive()


def test_a_second_agent_with_another_state_leaves_the_first_ones_socket_alone(
    path: Path, serve: Callable[..., ControlServer]
):
    serve(lambda *_: Response(True, data="first"))
    inode = path.stat().st_ino
    with pytest.raises(VmplaceError, match="another agent serves"):
        ControlServer(path, echo)
    assert path.stat().st_ino == inode and ask("status", path=path) == "first"


def test_a_socket_that_somebody_else_serves_is_left_alone_though_nobody_locked_it(path: Path):
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(VmplaceError, match="another agent serves"):
            ControlServer(path, echo)
        assert path.is_socket()


def test_a_killed_agents_socket_and_lock_are_taken_over(path: Path):
    code = (
        "import os, sys; from pathlib import Path; from vmplace.interfaces.control import ControlServer\n"
        "ControlServer(Path(sys.argv[1]), print).start(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.is_socket()
    server = ControlServer(path, echo)
    server.start()
    assert ask("status", path=path)
    server.close()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("whole", [False, True], ids=["socket", "directory"])
def test_a_socket_that_was_removed_comes_back(
    path: Path, serve: Callable[..., ControlServer], monkeypatch: pytest.MonkeyPatch, whole: bool
):
    monkeypatch.setattr(control, "LOOK_S", 0.05)
    serve()
    for file in list(path.parent.iterdir()) if whole else [path]:
        file.unlink()
    if whole:
        path.parent.rmdir()
    deadline = time.monotonic() + 60
    while not path.is_socket() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ask("status", path=path)


FLOOD = """
import socket, sys
busy = 0
for _ in range(int(sys.argv[2])):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(sys.argv[1])
        try:
            sock.sendall(b'{"command": "status"}\\n')
        except BrokenPipeError:
            pass
        busy += b"too many requests" in sock.makefile("rb").readline()
print(busy)
"""


def test_a_user_may_ask_so_often_at_once_and_so_often_in_the_long_run():
    allowance = control._Allowance()
    assert [allowance.take(1e6) for _ in range(100)] == [True] * 60 + [False] * 40
    # For an hour, every 10 ms.
    asked = [allowance.take(1e6 + at / 100) for at in range(360_000)]
    assert sum(asked) == pytest.approx(20 * 3600, abs=1)


@pytest.fixture
def nobody_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who is slow to ask, on a machine that hardly runs, may ask the more often."""
    monkeypatch.setattr(control, "REQUESTS_PER_S", 0.0)


@needs_nobody
def test_a_user_who_asks_all_the_time_is_sent_away_and_root_is_answered(nobody_may_ask_again: None):
    path = Path(f"/tmp/vmplace-flood-{os.getpid()}.sock")

    def tell(peer: Peer, _request: Request) -> Response:
        return Response(True, data=peer.uid)

    server = ControlServer(path, tell)
    server.start()
    path.chmod(0o666)
    argv = ["/usr/bin/env", "python3", "-c", FLOOD, str(path), "300"]
    try:
        with subprocess.Popen(argv, user=NOBODY, stdout=subprocess.PIPE) as flood:
            for _ in range(20):
                assert ask("status", path=path, timeout_s=20) == 0
            busy = int(flood.communicate(timeout=120)[0])
    finally:
        server.close()
    assert busy == 240


CROWD = """
import socket, sys, threading
def crowd():
    while True:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(sys.argv[1])
            sock.recv(1)
for _ in range(100):
    threading.Thread(target=crowd, daemon=True).start()
threading.Event().wait(60)
"""


def is_full(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        return sock.connect_ex(str(path)) == errno.EAGAIN


@needs_nobody
def test_a_user_who_keeps_the_queue_full_keeps_neither_root_nor_others_out():
    """The kernel refuses who does not wait, and has all others wait in turn."""
    path = Path(f"/tmp/vmplace-crowd-{os.getpid()}.sock")
    server = ControlServer(path, echo)
    server.start()
    path.chmod(0o666)
    argv = ["/usr/bin/env", "python3", "-c", CROWD, str(path)]
    try:
        with subprocess.Popen(argv, user=NOBODY, stderr=subprocess.DEVNULL) as crowd:
            deadline = time.monotonic() + 60
            while not is_full(path):
                assert time.monotonic() < deadline
            for _ in range(5):
                assert ask("status", path=path, timeout_s=60) == [0, "status", None]
            # As one who has no other way in: not refused, but in turn.
            with agent_socket._connected(path, 120.0):
                pass
            crowd.kill()
    finally:
        server.close()


def test_roots_own_socket_is_for_root_alone_and_made_anew(
    path: Path, serve: Callable[..., ControlServer], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(control, "LOOK_S", 0.05)
    serve()
    assert roots_path(path).stat().st_mode & 0o777 == 0o600
    roots_path(path).unlink()
    deadline = time.monotonic() + 60
    while not roots_path(path).is_socket() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ask("status", path=path)


def test_an_agent_without_a_socket_for_root_is_asked_by_the_common_one(
    path: Path, serve: Callable[..., ControlServer]
):
    serve()
    roots_path(path).unlink()
    assert ask("status", path=path)


def test_who_asks_under_many_ids_that_he_was_lent_is_one_user(
    path: Path,
    serve: Callable[..., ControlServer],
    monkeypatch: pytest.MonkeyPatch,
    nobody_may_ask_again: None,
):
    """In a user namespace of his own he changes his id and keeps his groups."""
    uids = iter(range(100_000, 200_000))
    monkeypatch.setattr(control, "peer_of", lambda _: Peer(1, next(uids), 1000))
    monkeypatch.setattr(control, "owner_of", lambda uid: 1000 if uid >= 100_000 else uid)
    serve()
    answers = []
    for _ in range(100):
        with connected(path) as sock:
            # Who is sent away is not listened to.
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(STATUS)
            with contextlib.suppress(ConnectionResetError):
                answers.append(sock.recv(1 << 16))
    assert b'"ok":true' in answers[0] and any(b'"busy"' in answer for answer in answers)


def test_nonsense_after_nonsense_changes_nothing(path: Path, serve: Callable[..., ControlServer]):
    serve()
    for sent in (b"\n", b"\0" * 100 + b"\n", b'{"command": "show", "guest": "\\ud800"}\n', STATUS[:-1]):
        with connected(path) as sock:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.makefile("rb").readline()
            assert not answer or not json.loads(answer)["ok"]
    assert ask("status", path=path)
