"""JSON of the agent's state without a library is byte for byte what the whole command line prints."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.served_agent import served
from vmplace.interfaces import entry
from vmplace.interfaces.entry import parsed, quick_answer

ENTRY = "from vmplace.interfaces.entry import main; main()"
WHOLE = "from vmplace.interfaces.cli import main; main()"
TELL = "import atexit, sys; atexit.register(lambda: print('click' in sys.modules, file=sys.stderr))"
NOW = re.compile(rb'("(?:cpu_seconds|rss_bytes)": |; cost )[0-9.e-]+( CPU s, [0-9]+ MiB)?')
"""What differs each time that it is asked."""
NAME = 'db\u00e9 \u2028\x1b[31m"guests": {}'


@pytest.fixture(scope="module")
def agent_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    agent = World([guest("db1"), guest(NAME)]).agent()
    agent.run(windows=1)
    with served(agent, tmp_path_factory.mktemp("agent") / "control.sock") as path:
        yield path


@pytest.fixture(scope="module")
def empty_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with served(World([]).agent(), tmp_path_factory.mktemp("empty") / "control.sock") as path:
        yield path


def run(code: str, path: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    env = os.environ | {"VMPLACE_SOCKET": str(path), "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, check=False, env=env, timeout=120
    )


def is_alike(path: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """Return what the entry prints, which is what the whole command line prints."""
    quick, whole = run(ENTRY, path, *words), run(WHOLE, path, *words)
    assert (quick.returncode, quick.stderr) == (whole.returncode, whole.stderr)
    assert NOW.sub(rb"\1", quick.stdout) == NOW.sub(rb"\1", whole.stdout)
    return quick


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["status", "--json"],
        ["--json", "status"],
        ["status", "--json", "--json"],
        ["show", "db1", "--json"],
        ["show", "--json", NAME],
        ["why", "db1", "--json"],
        ["why", "--json", "--", "db1"],
        ["show", "none", "--json"],
        ["show", "--json"],
        ["show", "db1", "db1", "--json"],
        ["status", "--json", "--nosuch"],
        ["status", "--json", "--socket"],
        ["status", "--json", "--socket", ""],
        ["status", "--json", "--socket", "/nonexistent/control.sock"],
        ["status", "--help", "--json"],
        ["status"],
        [],
    ],
    ids=" ".join,
)
def test_the_entry_prints_what_the_command_line_prints(agent_at: Path, words: list[str]):
    is_alike(agent_at, *words)


def test_without_guests_and_without_an_agent_the_error_is_the_same(empty_at: Path, tmp_path: Path):
    assert is_alike(empty_at, "status", "--json").returncode == 3
    assert is_alike(tmp_path / "none.sock", "status", "--json").returncode == 4


@pytest.mark.parametrize(
    ("words", "needs_click"), [("status", False), ("show db1", False), ("show no", True)]
)
def test_only_what_is_not_plain_needs_click(agent_at: Path, words: str, needs_click: bool):
    done = run(f"{TELL}; {ENTRY}", agent_at, *words.split(), "--json")
    assert done.stderr.decode().split()[-1] == str(needs_click)
    assert needs_click or json.loads(done.stdout)


def test_a_socket_that_is_named_comes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VMPLACE_SOCKET", "/a")
    assert parsed(["status", "--json"]) == ("status", None, Path("/a"))
    assert parsed(["show", "--socket", "/b", "db1", "--json"]) == ("show", "db1", Path("/b"))


HOSTILE = [
    b"",
    b"{}\n",
    b"[]\n",
    b"no\n",
    b'{"ok": true, "data": {}, "version": 1}\n',
    b'{"ok": true, "text": 1}\n',
    b'{"ok": true, "text": "\\u001b[31m"}\n',
    b'{"ok": true, "text": "[]"}\n',
    b'{"ok": false, "text": "{\\"guests\\": {\\"a\\": 1}}"}\n',
    b"[" * 100_000 + b"\n",
    b"\xff\n",
]


@pytest.mark.parametrize("answer", [*HOSTILE, None], ids=lambda one: repr(one)[:24])
def test_an_answer_of_another_form_is_left_to_the_command_line(
    tmp_path: Path, answer: bytes | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(entry, "LATEST_S", 0.2)
    path, done = tmp_path / "control.sock", threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer_once() -> None:
            with listener.accept()[0] as client:
                client.recv(4096)
                if answer is None:
                    done.wait(60)
                else:
                    client.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        try:
            assert quick_answer(["status", "--json", "--socket", str(path)]) is None
        finally:
            done.set()
            thread.join()
