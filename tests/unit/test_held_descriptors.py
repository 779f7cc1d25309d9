"""What a step opens, is given and closes: a thread for steps has a file table of its own (step_thread.py)."""

import contextlib
import errno
import os
import signal
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.descriptors import descriptors
from tests.unit.held_process import (
    descriptors_of,
    is_at_end,
    is_open,
    link_of,
    until,
    wait_for,
)
from vmplace import step_thread
from vmplace.held import (
    Held,
    HeldError,
)
from vmplace.step_thread import Job, Worker
from vmplace.thread_waits import ThreadTimes
from vmplace.topology.procfs import read_smaps


def test_what_a_step_opens_is_the_callers_and_nobody_elses(tmp_path: Path):
    reads, path = Held(tmp_path), tmp_path / "file"
    path.write_text("own")
    fd = reads.opened(7, lambda: os.open(path, os.O_RDONLY))
    assert os.read(fd, 3) == b"own" and descriptors_of(path) == 1
    os.lseek(fd, 0, os.SEEK_SET)
    assert reads.bounded_on(7, fd, lambda own: os.read(own, 3)) == b"own" and descriptors_of(path) == 1
    reads.closed(7, fd)
    assert descriptors_of(path) == 0
    with pytest.raises(FileNotFoundError):
        reads.opened(7, lambda: os.open(tmp_path / "absent", os.O_RDONLY))
    reads.close()


def test_what_a_step_opens_that_is_given_up_is_closed(tmp_path: Path):
    reads, go_on, path = Held(tmp_path), threading.Event(), tmp_path / "file"
    path.touch()

    def step() -> int:
        fd = os.open(path, os.O_RDONLY)
        wait_for(go_on)
        return fd

    with pytest.raises(HeldError):
        reads.opened(7, step)
    assert reads.holds(7) and descriptors_of(path) == 1
    go_on.set()
    until(lambda: descriptors_of(path) == 0)
    reads.close()


def test_a_read_that_is_given_up_keeps_nothing_of_what_it_has_read(tmp_path: Path):
    """A process may let megabytes of its smaps be read before it takes the lock."""
    path, whole = tmp_path / "7/smaps", b"x" * (1 << 20)
    path.parent.mkdir()
    os.mkfifo(path)
    opened: list[int] = []

    def feed() -> None:
        opened.append(os.open(path, os.O_WRONLY))
        for _ in range(8):
            os.write(opened[0], whole)

    writer = threading.Thread(target=feed, daemon=True)
    writer.start()
    tracemalloc.start()
    try:
        with pytest.raises(HeldError):
            read_smaps(7, tmp_path)
        writer.join(60)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < len(whole) and most >= 8 * len(whole)
    os.close(opened[0])


def test_what_a_step_opens_that_ends_as_it_is_given_up_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reads, path = Held(tmp_path), tmp_path / "file"
    path.touch()
    await_end = reads.await_end

    def give_up_late(pid: int, ends_within: Callable[[float], bool], *rest: Any, **more: Any) -> None:
        monkeypatch.setattr(reads, "await_end", await_end)
        assert ends_within(60)
        raise HeldError

    monkeypatch.setattr(reads, "await_end", give_up_late)
    with pytest.raises(HeldError):
        reads.opened(7, lambda: os.open(path, os.O_RDONLY))
    assert descriptors_of(path) == 0
    reads.close()


def test_what_is_closed_is_closed_by_the_thread_alone(tmp_path: Path):
    """It may take long: the last one that is closed must not be the caller's."""
    reads, (read_end, write_end) = Held(tmp_path), os.pipe()
    go_on = threading.Event()
    reads.bounded(7, lambda: None)
    (worker,) = reads._idle
    worker.begin(Job(lambda: wait_for(go_on)))
    with pytest.raises(HeldError):
        reads.closed(7, write_end)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(write_end)
    assert not is_at_end(read_end)
    go_on.set()
    until(lambda: is_at_end(read_end))
    os.close(read_end)
    reads.close()


def test_a_thread_for_steps_has_none_of_the_agents_files(tmp_path: Path):
    reads, read_end = Held(tmp_path), os.open(os.devnull, os.O_RDONLY)
    mine = {fd: link_of("self", fd) for fd in (0, 1, 2, read_end)}

    def step() -> dict[int, str]:
        return {fd: link_of("thread-self", fd) for fd in range(64) if is_open(fd)}

    for _ in range(2):
        found = reads.bounded(7, step)
        others = {target for number, target in found.items() if number > 2}
        assert [found[number] for number in range(3)] == [os.devnull] * 3
        assert sorted(target.rpartition("/")[2].partition(":")[0] for target in others) == [
            "schedstat",
            "socket",
        ]
    assert {fd: link_of("self", fd) for fd in mine} == mine
    os.close(read_end)
    reads.close()


def test_signals_go_to_the_agents_other_threads(tmp_path: Path):
    """Their handlers write to descriptors of its table."""
    reads = Held(tmp_path)
    blocked = reads.bounded(7, lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    assert {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD} <= blocked
    reads.close()


def test_without_a_table_of_their_own_threads_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before Linux 5.9, and where a filter of system calls knows no close_range(2)."""
    monkeypatch.setattr(step_thread, "CLOSE_RANGE", 100_000)
    before, reads, path = descriptors(), Held(tmp_path), tmp_path / "file"
    path.write_text("own")
    fd = reads.opened(7, lambda: os.open(path, os.O_RDONLY))
    assert reads.bounded_on(7, fd, lambda own: os.read(own, 3)) == b"own"
    reads.closed(7, fd)
    reads.close()
    until(lambda: descriptors() == before)


def test_what_cannot_be_sent_to_a_thread_is_closed_later(tmp_path: Path):
    reads, path = Held(tmp_path), tmp_path / "file"
    path.touch()
    fd = os.open(path, os.O_RDONLY)
    reads.bounded(7, lambda: None)
    with contextlib.suppress(BlockingIOError):
        while True:
            reads._idle[0]._ours.send(b"1")
    reads.closed(7, fd)
    assert descriptors_of(path) == 1
    reads.keep(set())
    assert descriptors_of(path) == 0
    assert reads.bounded(7, lambda: 3) == 3
    reads.close()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), OSError(errno.EMFILE, "many")])
def test_what_cannot_be_closed_for_want_of_a_thread_is_closed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def start(_worker: Worker) -> None:
        raise error

    reads, path = Held(tmp_path), tmp_path / "file"
    path.touch()
    fd = os.open(path, os.O_RDONLY)
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "start", start)
        reads.closed(7, fd)
        reads.keep(set())
        assert descriptors_of(path) == 1
    reads.keep(set())
    assert descriptors_of(path) == 0
    reads.close()


def test_workers_leave_no_descriptor_behind(tmp_path: Path):
    before, reads = descriptors(), Held(tmp_path)
    for _ in range(3):
        reads.bounded(7, lambda: None)
        reads.close()
    assert descriptors() == before


def test_a_step_on_a_descriptor_leaks_none(tmp_path: Path):
    reads, go_on, path = Held(tmp_path), threading.Event(), tmp_path / "file"
    path.touch()
    fd = os.open(path, os.O_RDONLY)
    copies: list[int] = []

    def step(own: int) -> None:
        copies.append(own)
        wait_for(go_on)

    with pytest.raises(HeldError):
        reads.bounded_on(7, fd, step)
    with pytest.raises(HeldError):
        reads.bounded_on(7, fd, step)
    assert len(copies) == 1 and copies[0] != fd
    assert descriptors_of(path) == 2
    go_on.set()
    until(lambda: descriptors_of(path) == 1)
    os.close(fd)
    reads.close()


@pytest.mark.parametrize(
    ("kind", "name"), [(ThreadTimes, "begin"), (ThreadTimes, "slept_s"), (Job, "_is_sent")]
)
def test_a_thread_that_fails_at_a_step_ends_it_and_does_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, name: str
):
    """What it has not received, or has sent, would be the descriptor of a later step, for another guest."""

    def fails(*_: object) -> None:
        raise MemoryError

    reads, files = Held(tmp_path), [os.memfd_create(one) for one in "ab"]
    with monkeypatch.context() as patch:
        patch.setattr(kind, name, fails)
        with pytest.raises(MemoryError):
            reads.closed(7, reads.opened(7, lambda: os.memfd_create("c")))
        if kind is ThreadTimes:
            with pytest.raises(MemoryError):
                reads.bounded_on(7, files[0], os.fstat)
    assert reads.bounded_on(8, files[1], lambda fd: os.fstat(fd).st_ino) == os.fstat(files[1]).st_ino
    made = reads.opened(8, lambda: os.memfd_create("d"))
    assert Path(f"/proc/self/fd/{made}").readlink().name.startswith("memfd:d")
    reads.close()
    for fd in (made, *files):
        os.close(fd)
