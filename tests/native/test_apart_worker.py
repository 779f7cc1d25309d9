"""The program that makes calls in a process of its own (native/apart_worker.c), asked by its socket."""

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.unit.nobody import NOBODY, needs_nobody
from vmplace import native
from vmplace.apart import ANSWER, ASK, COUNT, HEAD, MOST_PAGES, MOVE, READY, WRITE
from vmplace.counting import COUNTED, EVENT, MOST_EVENTS

SOURCES = Path(native.__file__).parent
TASK_CLOCK = (1, 1)
"""PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK."""
NOBODYS_PID = 1 << 22
"""The kernel gives no pid from here on (PID_MAX_LIMIT)."""
MOST_TEXT = 4096
PATIENCE_S = 60.0


@dataclass
class Worker:
    process: "subprocess.Popen[bytes]"
    socket: socket.socket

    def ask(self, request: bytes, values_bytes: int = 0) -> "tuple[int, bytes]":
        """Return the errno, and the values."""
        self.socket.sendall(request)
        answer = b""
        while len(answer) < ANSWER.size + values_bytes:
            part = self.socket.recv(ANSWER.size + values_bytes - len(answer))
            assert part
            answer += part
        return ANSWER.unpack_from(answer)[0], answer[ANSWER.size :]

    def count(self, events: int, kind: "tuple[int, int]" = TASK_CLOCK) -> "list[tuple[int, ...]]":
        asked = EVENT.pack(kind[0], os.getpid(), kind[1]) * events
        request = HEAD.pack(COUNT, os.getpid(), events, 0) + asked
        error, values = self.ask(request, COUNTED.size * events)
        assert error == 0
        return list(COUNTED.iter_unpack(values))

    def links(self) -> "dict[int, str]":
        found = Path(f"/proc/{self.process.pid}/fd")
        return {int(fd.name): str(fd.readlink()) for fd in found.iterdir()}

    def events(self) -> int:
        return sum("perf_event" in link for link in self.links().values())


@contextlib.contextmanager
def worker(program: Path, user: "int | None" = None) -> Iterator[Worker]:
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    # What the sanitizer calls a leak needs ptrace(2), which the program forbids.
    environ = {"ASAN_OPTIONS": "detect_leaks=0"}
    with ours, theirs:
        process = subprocess.Popen(
            [program],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env=environ,
            user=user,
            group=user,
        )
        theirs.close()
        try:
            assert ours.recv(1) == READY
            yield Worker(process, ours)
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def checked() -> Iterator[Path]:
    """The program, as compiled with the checks of all that C leaves undefined."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "checked"
        flags = ["-std=gnu11", "-g", "-O1", "-D_GNU_SOURCE", "-Wall", "-Werror"]
        flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        sources = [SOURCES / "calls.c", *sorted(SOURCES.glob("apart_*.c"))]
        subprocess.run(["gcc", *flags, "-o", program, *sources], check=True, timeout=120)
        yield program


@pytest.fixture(params=["shipped", "checked"])
def asked(request: pytest.FixtureRequest, checked: Path) -> Iterator[Worker]:
    with worker(native.APART if request.param == "shipped" else checked) as started:
        yield started


def head(kind: int, pid: int = 1, count: int = 0, text: int = 0) -> bytes:
    return HEAD.pack(kind, pid, count, text)


MALFORMED = {
    "no such kind": head(0),
    "nor one of the largest number": head(2**32 - 1),
    "a kind after the last": head(COUNT + 1),
    "pages of itself": head(MOVE, 0, 1) + bytes(16),
    "pages of no process": head(ASK, -1, 1) + bytes(12),
    "a page too many to move": head(MOVE, NOBODYS_PID, MOST_PAGES + 1) + bytes(16 * (MOST_PAGES + 1)),
    "a page too many to ask for": head(ASK, NOBODYS_PID, MOST_PAGES + 1) + bytes(12 * (MOST_PAGES + 1)),
    "as many pages as there are numbers": head(MOVE, 1, 2**32 - 1),
    "pages with a text": head(ASK, 1, 1, 1) + bytes(13),
    "more than a request": head(ASK, NOBODYS_PID, 1) + bytes(13),
    "no path": head(WRITE, 0, 0, 4) + b"text",
    "a path without its end": head(WRITE, 0, 4, 4) + b"/tmptext",
    "a path that ends early": head(WRITE, 0, 6, 4) + b"/t\0mp\0text",
    "a long path": head(WRITE, 0, MOST_TEXT + 1) + b"/" * MOST_TEXT + b"\0",
    "a long text": head(WRITE, 0, 2, MOST_TEXT + 1) + b"/\0" + b"t" * (MOST_TEXT + 1),
    "an event too many": head(COUNT, 1, MOST_EVENTS + 1),
    "as many events as there are numbers": head(COUNT, 1, 2**32 - 1),
    "a negative pid for events": head(COUNT, -1, 0),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_request_that_cannot_be_ends_it_without_an_answer_or_harm(asked: Worker, what: str):
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        asked.socket.sendall(MALFORMED[what])
        assert asked.socket.recv(1) == b""
    # A sanitizer's report would be another code.
    assert asked.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    "request_", [head(MOVE, NOBODYS_PID, 2) + bytes(31), head(WRITE, 0, 2, 9) + b"/\0", b"\1"]
)
def test_a_request_that_the_agent_ends_in_the_middle_of_ends_it(asked: Worker, request_: bytes):
    asked.socket.sendall(request_)
    asked.socket.shutdown(socket.SHUT_WR)
    assert asked.socket.recv(1) == b""
    assert asked.process.wait(PATIENCE_S) == 0


def test_a_request_may_come_byte_by_byte(asked: Worker):
    hva = np.zeros(1, np.uint64)
    hva[0] = hva.ctypes.data
    request = HEAD.pack(ASK, os.getpid(), 1, 0) + hva.tobytes() + bytes([255] * 4)
    for byte in request[:-1]:
        asked.socket.sendall(bytes([byte]))
    error, values = asked.ask(request[-1:], 4)
    assert error == 0 and struct.unpack("=i", values)[0] >= 0


@pytest.mark.parametrize("count", [0, 1, 511, 513, MOST_PAGES])
def test_of_each_page_the_answer_is_the_kernels_whatever_came_before(asked: Worker, count: int):
    memory = np.ones(MOST_PAGES * 512, np.uint64)
    hvas = memory.ctypes.data + np.arange(MOST_PAGES, dtype=np.uint64) * np.uint64(4096)
    for npages in (MOST_PAGES, count):
        status, own = np.full(npages, 77, np.int32), np.full(npages, 77, np.int32)
        request = HEAD.pack(ASK, os.getpid(), npages, 0) + hvas[:npages].tobytes() + status.tobytes()
        error, values = asked.ask(request, 4 * npages)
        native.page_nids(os.getpid(), hvas[:npages], own)
        assert error == 0 and values == own.tobytes()


def test_what_is_written_is_whole_and_errors_are_the_kernels(asked: Worker, tmp_path: Path):
    path = tmp_path / "there"
    path.write_text("before" * 1000)
    for name, text, error in ((path, b"x" * MOST_TEXT, 0), (path, b"", 0), (tmp_path / "absent", b"x", 2)):
        place = os.fsencode(name) + b"\0"
        request = HEAD.pack(WRITE, 0, len(place), len(text)) + place + text
        assert asked.ask(request) == (error, b"")
        assert error or path.read_bytes() == text


def test_events_are_open_from_the_first_request_on_and_no_descriptor_is_lost(asked: Worker):
    """Those of a request are as many as at first: of others there is no more to be read."""
    for count, errors in ((3, [0] * 3), (MOST_EVENTS, [0] * 3 + [24] * (MOST_EVENTS - 3)), (1, [0])):
        assert [error for error, *_ in asked.count(count)] == errors
        assert asked.events() == 3


def test_as_many_events_are_opened_as_it_may_have(asked: Worker):
    assert [error for error, *_ in asked.count(MOST_EVENTS)] == [0] * MOST_EVENTS
    assert asked.events() == MOST_EVENTS


def test_an_event_that_does_not_open_is_an_error_of_its_own(asked: Worker):
    assert {error for error, *_ in asked.count(3, kind=(2**32 - 1, 0))} <= {2, 22}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_that_reach_the_agent_do_not_end_it_and_its_socket_does(number: signal.Signals):
    with worker(native.APART) as asked:
        asked.process.send_signal(number)
        asked.count(1)
        asked.socket.close()
        assert asked.process.wait(PATIENCE_S) == 0


def test_it_has_no_descriptor_of_the_agent_but_its_socket():
    with Path("/proc/self/status").open(), worker(native.APART) as asked:
        links = asked.links()
        assert {fd: link for fd, link in links.items() if fd} == {
            1: "/dev/null",
            2: "/dev/null",
            3: f"/proc/{asked.process.pid}/schedstat",
        }
        assert links[0].startswith("socket:")


@needs_nobody
def test_it_writes_no_core_dump():
    """Files in /proc of a process that may be dumped are its user's, those of any other are root's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        program = Path(shutil.copy(native.APART, folder))
        with worker(program, user=NOBODY) as asked:
            assert Path(f"/proc/{asked.process.pid}/environ").stat().st_uid == 0


def test_a_large_request_takes_memory_only_while_it_lasts():
    def anonymous_bytes(pid: int) -> int:
        text = Path(f"/proc/{pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("RssAnon:"))

    with worker(native.APART) as asked:
        small: Callable[[], object] = lambda: asked.ask(head(ASK, NOBODYS_PID, 1) + bytes(12), 4)  # noqa: E731
        small()
        before = anonymous_bytes(asked.process.pid)
        asked.ask(head(ASK, NOBODYS_PID, MOST_PAGES) + bytes(12 * MOST_PAGES), 4 * MOST_PAGES)
        small()
        assert anonymous_bytes(asked.process.pid) - before <= 48 << 10
