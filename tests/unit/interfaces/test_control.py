"""Root may act, others may look, and no client holds up another."""

import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.unit.descriptors import descriptors
from tests.unit.nobody import NOBODY, needs_nobody
from vmplace.errors import VmplaceError
from vmplace.interfaces import control
from vmplace.interfaces.agent_socket import roots_path
from vmplace.interfaces.answers import AgentAnswers
from vmplace.interfaces.client import NoAgentError, RefusedError, ask
from vmplace.interfaces.control import ControlServer, Peer
from vmplace.interfaces.control_place import SocketPlace
from vmplace.interfaces.protocol import MAX_REQUEST_BYTES, Request, Response


def echo(peer: Peer, request: Request) -> Response:
    return Response(True, data=[peer.uid, request.command, request.guest])


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    servers = []

    def start(answer: control.Answerer = echo) -> Path:
        path = tmp_path / "run/control.sock"
        servers.append(ControlServer(path, answer))
        servers[-1].start()
        return path

    yield start
    for server in servers:
        server.close()


def talk(path: Path, sent: bytes) -> dict[str, Any]:
    with connected(path) as sock:
        sock.sendall(sent)
        heard: dict[str, Any] = json.loads(sock.makefile("rb").readline())
        return heard


def asked_by_me(path: Path) -> Path:
    """Return which of the agent's sockets ``ask`` takes."""
    return roots_path(path) if os.geteuid() == 0 else path


def connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    sock.connect(str(path))
    return sock


def test_a_path_that_no_socket_can_have_is_reported_with_the_reason(tmp_path: Path):
    """Its limit is in bytes: unix(7)."""
    with pytest.raises(VmplaceError, match="too long"):
        SocketPlace(tmp_path / ("\u00e9" * 60))


def test_a_request_is_answered_with_the_peers_uid(serve: Callable[..., Path]):
    assert ask("show", "db1", path=serve()) == [os.getuid(), "show", "db1"]


WRONG = [
    (b"status\n", "not a request"),
    (b"\xff\xfe\n", "not a request"),
    (b"[" * 4000 + b"\n", "not a request"),
    (b'{"command": "status", "guest": 3}\n', "not a request"),
    (b'{"command": "status", "version": 99}\n', "version 99"),
    (b'{"command": "format"}\n', "unknown command 'format'"),
    (b"x" * (MAX_REQUEST_BYTES + 1), "at most 4096 bytes"),
]


@pytest.mark.parametrize(("sent", "error"), WRONG, ids=[w[1] + str(i) for i, w in enumerate(WRONG)])
def test_nonsense_is_refused_with_a_reason(serve: Callable[..., Path], sent: bytes, error: str):
    reported = talk(serve(), sent)
    assert not reported["ok"] and reported["kind"] == "request" and error in reported["error"]


def test_a_failing_answer_is_reported_and_the_server_goes_on(serve: Callable[..., Path]):
    def fail(_peer: Peer, _request: Request) -> Response:
        raise VmplaceError("no such thing", hint="look elsewhere")

    path = serve(fail)
    for _ in range(2):
        with pytest.raises(RefusedError, match="no such thing") as caught:
            ask("status", path=path)
        assert caught.value.hint == "look elsewhere"


@pytest.fixture
def nobody_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that hardly runs may take longer than REQUEST_S to connect a crowd."""
    monkeypatch.setattr(control, "REQUEST_S", 600.0)


def is_connected(sock: socket.socket) -> bool:
    """Tell whether the other end is open still."""
    return not select.select([sock], [], [], 0)[0]


def test_clients_that_say_nothing_hold_up_nobody(serve: Callable[..., Path], nobody_is_dropped: None):
    path = serve()
    silent = [connected(path) for _ in range(control.MAX_CONNECTIONS_PER_UID - 1)]
    assert ask("status", path=path)
    # It was not answered because they are gone.
    assert all(is_connected(sock) for sock in silent)
    for sock in silent:
        sock.close()


def test_a_crowd_is_asked_to_come_again(serve: Callable[..., Path], nobody_is_dropped: None):
    path = serve()
    crowd = [connected(asked_by_me(path)) for _ in range(control.MAX_CONNECTIONS_PER_UID)]
    with pytest.raises(RefusedError, match="too many"):
        ask("status", path=path)
    for sock in crowd:
        sock.close()


def test_what_is_said_to_a_crowd_is_heard_by_who_asks_late(
    serve: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, nobody_is_dropped: None
):
    class Late(socket.socket):
        def sendall(self, *args: Any) -> None:
            time.sleep(0.2)
            super().sendall(*args)

    path = serve()
    crowd = [connected(asked_by_me(path)) for _ in range(control.MAX_CONNECTIONS_PER_UID)]
    monkeypatch.setattr(socket, "socket", Late)
    with pytest.raises(RefusedError, match="too many"):
        ask("status", path=path)
    for sock in crowd:
        sock.close()


def test_a_silent_client_is_dropped_in_time(serve: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control, "REQUEST_S", 0.1)
    with connected(serve()) as sock:
        sock.sendall(b'{"command"')
        assert sock.recv(1) == b""


def test_a_client_that_does_not_listen_is_dropped(
    serve: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(control, "RESPONSE_S", 0.1)
    path = serve(lambda _peer, _request: Response(True, data="x" * (8 << 20)))
    with connected(path) as deaf:
        deaf.sendall(b'{"command": "status"}\n')
        # What was sent before is there to be read, and would otherwise be followed by the rest.
        hangs_up = select.poll()
        hangs_up.register(deaf, select.POLLRDHUP)
        assert hangs_up.poll(60_000)
        with pytest.raises(json.JSONDecodeError):
            json.loads(deaf.makefile("rb").read())


def test_a_late_answer_arrives_and_others_do_not_wait_for_it(serve: Callable[..., Path]):
    late: Future[Response] = Future()
    path = serve(lambda peer, request: late if request.command == "undo" else echo(peer, request))
    with connected(path) as sock:
        sock.sendall(b'{"command": "undo"}\n')
        sock.shutdown(socket.SHUT_WR)
        assert ask("status", path=path)
        late.set_result(Response(True, data="done"))
        assert json.loads(sock.makefile("rb").readline())["data"] == "done"


def test_a_closed_server_keeps_no_descriptor_and_a_late_answer_wakes_nobody(tmp_path: Path):
    """The number of its eventfd may be another file's by then, the journal's for one."""
    late: Future[Response] = Future()
    before = descriptors()
    server = ControlServer(tmp_path / "s", lambda _, __: late)
    server.start()
    with connected(tmp_path / "s") as sock:
        sock.sendall(b'{"command": "apply"}\n')
        while not late._done_callbacks:  # type: ignore[attr-defined]
            time.sleep(0.01)
        own = {fd for fd, target in descriptors() - before if "eventfd" in target}
        server.close()
    server.close()
    assert descriptors() - before == set()
    with (tmp_path / "journal").open("wb") as journal:
        numbers = {os.dup(journal.fileno()) for _ in range(8)}
        late.set_result(Response(True))
        assert own and own <= {journal.fileno(), *numbers}
        assert os.fstat(journal.fileno()).st_size == 0
    for fd in numbers:
        os.close(fd)


def test_only_root_and_the_group_may_connect_and_nothing_is_left_behind(tmp_path: Path):
    path = tmp_path / "run/control.sock"
    path.parent.mkdir()
    socket.socket(socket.AF_UNIX).bind(str(path))
    server = ControlServer(path, echo)
    assert path.stat().st_mode & 0o777 in (0o600, 0o660)
    server.start()
    server.close()
    assert not path.exists()
    with pytest.raises(NoAgentError):
        ask("status", path=path)


def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path):
    (tmp_path / "precious").write_text("data")
    with pytest.raises(VmplaceError, match="not a socket"):
        ControlServer(tmp_path / "precious", echo)
    assert (tmp_path / "precious").read_text() == "data"


@needs_nobody
@pytest.mark.parametrize("command", ["apply", "undo", "pause", "resume"])
def test_another_user_may_look_but_not_act(tmp_path: Path, command: str):
    class NoAgent:
        """Any order that gets through fails the test by its attribute error."""

    path = Path(f"/tmp/vmplace-test-{os.getpid()}.sock")
    server = ControlServer(path, AgentAnswers(NoAgent()))  # type: ignore[arg-type]
    server.start()
    path.chmod(0o666)
    child = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(sys.argv[2].encode() + b'\\n'); print(s.makefile().readline())"
    )
    request = json.dumps({"command": command})
    argv = ["/usr/bin/env", "python3", "-c", child, str(path), request]
    try:
        said = subprocess.run(argv, check=False, user=NOBODY, capture_output=True, timeout=120).stdout
    finally:
        server.close()
    reported = json.loads(said)
    assert reported["kind"] == "denied" and f"uid {NOBODY}" in reported["error"]
