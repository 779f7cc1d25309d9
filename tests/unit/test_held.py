"""A process that holds up whoever reads its memory map is left alone, and holds up nobody.

A FIFO without a writer stands for a file of /proc whose reader waits for the lock of a process' mappings; the
real thing is in tests/native/test_held_guests.py.
"""

import contextlib
import errno
import os
import select
import signal
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.descriptors import descriptors
from tests.unit.nobody import needs_nobody
from tests.unit.test_thread_waits import StepOfSeconds
from vmplace import step_thread
from vmplace.agent.config import Config, LoadedConfig
from vmplace.agent.loop import Agent
from vmplace.agent.parts import Parts
from vmplace.cpu_time import thread_cpu_ns
from vmplace.held import (
    HELD,
    LOOK_S,
    MOST_S,
    RENEW_S,
    WAIT_S,
    Held,
    HeldError,
    bounded,
)
from vmplace.held_limits import LONGEST_BACKOFF_S, PROCESS_BYTES, STEP_BYTES, STEPS
from vmplace.step_thread import Job, Worker
from vmplace.thread_waits import ThreadTimes
from vmplace.topology.memory_budget import SPARE_BYTES, host_limit_bytes
from vmplace.topology.procfs import read_smaps
from vmplace.users import Users as SubordinateIds

MOST_OF_USER = 8
"""Of a user, where no other user's processes hold readers up."""
SMALL_GUEST_BYTES = 128 << 20


def put(proc: Path, pid: int, *, held: bool) -> Path:
    path = proc / f"{pid}/cmdline"
    path.parent.mkdir()
    if held:
        os.mkfifo(path)
    else:
        path.write_text("qemu\0")
    return path


def let_go(path: Path) -> bool:
    """Let a reader go; tell whether there was one."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as err:
        assert err.errno == errno.ENXIO
        return False
    return True


def descriptors_of(path: Path) -> int:
    """Count this process's descriptors of one file, in the tables of all threads."""
    # A thread may end, and others close some of theirs, meanwhile.
    tables = {thread.native_id: thread for thread in threading.enumerate() if thread.name == "step"}
    found = 0
    for tid in (os.getpid(), *tables):
        with contextlib.suppress(FileNotFoundError):
            found += sum(
                os.path.realpath(fd) == str(path) for fd in Path(f"/proc/self/task/{tid}/fd").iterdir()
            )
    return found


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def link_of(whose: str, fd: int) -> str:
    return str(Path(f"/proc/{whose}/fd/{fd}").readlink())


def is_at_end(read_end: int) -> bool:
    """Tell whether nobody has the pipe's other end open."""
    return bool(select.select([read_end], [], [], 0)[0])


def wait_for(what: threading.Event) -> None:
    assert what.wait(60)


class Counted(Held):
    """Notes each step that is begun, by the process that it is for."""

    def __init__(self, proc: Path) -> None:
        super().__init__(proc)
        self.begun: list[int] = []

    def await_end(self, pid: int, *args: Any, **words: Any) -> None:
        self.begun.append(pid)
        super().await_end(pid, *args, **words)


def test_a_process_that_holds_readers_up_is_reported_until_it_lets_go(tmp_path: Path):
    held, well = put(tmp_path, 7, held=True), put(tmp_path, 8, held=False)
    reads = Counted(tmp_path)
    assert reads.probe(7)
    assert all(reads.probe(7) and not reads.probe(8) for _ in range(100))
    assert not reads.probe(9)
    assert reads.begun.count(7) == 1
    assert let_go(held)
    until = time.monotonic() + 60
    # Its reader has yet to see that it may go on; and it is left alone for a second after that.
    held.unlink()
    while reads.probe(7) and time.monotonic() < until:
        time.sleep(0.01)
    assert not reads.probe(7)
    assert well.exists()
    reads.close()


def test_many_that_hold_readers_up_are_not_begun_at_all(tmp_path: Path):
    held = [put(tmp_path, pid, held=True) for pid in range(100, 120)]
    reads = Counted(tmp_path)
    assert all(reads.probe(pid) for pid in range(100, 120))
    assert reads.begun == list(range(100, 100 + MOST_OF_USER))
    assert sum([let_go(path) for path in held]) == MOST_OF_USER
    reads.close()


def test_many_that_hold_readers_up_cost_one_wait_and_then_a_tenth_of_one_each(tmp_path: Path):
    step = StepOfSeconds(tmp_path / "stat", 1e9, works=0.0)
    reads, least_s = Held(tmp_path, step.clock), WAIT_S + (MOST_OF_USER - 1) * WAIT_S / 10
    for pid in range(100, 100 + MOST_OF_USER):
        with pytest.raises(HeldError):
            reads.await_end(pid, step.ends_within, tmp_path / "stat", lambda: False)
    assert least_s <= step.now_s <= least_s + 3 * LOOK_S * MOST_OF_USER


class Users:
    """Processes of several users below a made-up /proc; each was read before."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.held, self.go_on, self.last = proc, Held(proc), threading.Event(), 0

    def process(self, uid: int, *, read: bool = True) -> int:
        self.last += 1
        os.chown(put(self.proc, self.last, held=False).parent, uid, -1)
        assert not (read and self.held.probe(self.last))
        return self.last

    def holders(self, uid: int, count: int) -> list[int]:
        pids = [self.process(uid) for _ in range(count)]
        for pid in pids:
            self.hold(pid)
        return pids

    def hold(self, pid: int) -> None:
        self.held.note_stuck(pid, self.go_on.is_set)

    def end(self) -> None:
        self.go_on.set()
        self.held.close()


@needs_nobody
def test_a_user_whose_processes_hold_readers_up_has_no_more_of_his_left_behind_known_or_not(tmp_path: Path):
    users = Users(tmp_path)
    his, others = users.process(7), users.process(8)
    users.holders(7, MOST_OF_USER - 1)
    assert not users.held.holds(his)
    users.holders(7, 1)
    new = users.process(7, read=False)
    assert users.held.holds(his) and users.held.holds(new)
    with pytest.raises(HeldError):
        users.held.bounded(his, lambda: None)
    assert not users.held.holds(others)
    users.go_on.set()
    assert not users.held.holds(his)
    users.held.close()


@needs_nobody
def test_ids_that_one_user_was_lent_are_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Else he may leave as many steps behind with each of them."""
    etc, proc = tmp_path / "etc", tmp_path / "proc"
    etc.mkdir()
    proc.mkdir()
    (etc / "passwd").write_text("alice:x:1001:1001::/:/bin/sh\n")
    (etc / "subuid").write_text("alice:100000:65536\n")
    monkeypatch.setattr("vmplace.held.owner_of", SubordinateIds(etc).owner_of)
    users = Users(proc)
    his, others = users.process(1001), users.process(1002)
    for uid in range(100_000, 100_000 + MOST_OF_USER):
        assert not users.held.holds(his)
        users.holders(uid, 1)
    assert users.held.holds(his) and users.held.holds(users.process(150_000, read=False))
    assert not users.held.holds(others)
    users.go_on.set()
    users.held.close()


@needs_nobody
def test_a_process_that_holds_two_steps_up_counts_once(tmp_path: Path):
    """A guest that holds up what is asked of it holds up the closing of its descriptor, too."""
    users = Users(tmp_path)
    his, others = users.process(7), users.process(8)
    stuck = [users.process(7) for _ in range(MOST_OF_USER)]
    for pid in stuck[:-1]:
        users.hold(pid)
        users.hold(pid)
    assert not users.held.holds(his)
    for _ in range(2):
        users.hold(stuck[-1])
    assert users.held.holds(his)
    # One user's are no reason to stop those of others.
    assert not users.held.holds(others)
    users.go_on.set()
    users.held.close()


@needs_nobody
def test_what_all_users_have_left_behind_has_a_limit_with_room_for_those_who_hold_nobody_up(tmp_path: Path):
    users = Users(tmp_path)
    good, late = users.process(1), users.process(3)
    for uid in range(100, 100 + STEPS.most - STEPS.reserved):
        assert not users.held.holds(users.process(uid, read=False))
        users.holders(uid, 1)
    unread = users.process(4, read=False)
    assert users.held.holds(unread)
    assert not users.held.holds(good)
    for pid in [users.process(uid, read=False) for uid in range(200, 200 + STEPS.reserved)]:
        users.hold(pid)
    assert users.held.holds(good) and users.held.holds(late)
    users.go_on.set()
    assert not users.held.holds(good)
    users.held.close()


@needs_nobody
@pytest.mark.parametrize("count", [2, 8, 19])
def test_users_whose_processes_all_hold_readers_up_keep_nobody_elses_new_guests_from_being_read(
    tmp_path: Path, count: int
):
    users = Users(tmp_path)
    hostile, cost = range(100, 100 + count), 0
    for uid in hostile:
        while not users.held.holds(users.process(uid, read=False)):
            users.holders(uid, 1)
            cost += 1
    new = [users.process(uid, read=False) for uid in range(1, 20)]
    assert not any(map(users.held.holds, new))
    assert all(users.held.holds(users.process(uid, read=False)) for uid in hostile)
    assert count <= cost < STEPS.most - STEPS.reserved
    users.end()


@needs_nobody
def test_guests_of_libvirt_that_hold_readers_up_cost_no_other_guest_of_the_same_user_anything(tmp_path: Path):
    users = Users(tmp_path)
    guests = [users.process(7, read=False) for _ in range(200)]
    users.held.vouch(guests)
    for pid in guests[:50]:
        assert not users.held.holds(pid)
        users.hold(pid)
    assert all(users.held.holds(pid) for pid in guests[:50])
    assert not any(users.held.holds(pid) for pid in guests[50:])
    # Nor do they take the room of processes that libvirt did not start, of this user or others.
    assert not users.held.holds(users.process(7, read=False))
    assert not users.held.holds(users.process(8, read=False))
    users.end()


@needs_nobody
def test_children_that_a_guest_of_libvirt_starts_have_the_limits_of_their_user(tmp_path: Path):
    users = Users(tmp_path)
    guests = [users.process(7) for _ in range(3)]
    users.held.vouch(guests)
    users.holders(7, MOST_OF_USER)
    assert users.held.holds(users.process(7, read=False))
    assert not any(users.held.holds(pid) for pid in guests)
    # Once libvirt runs them no more, what they hold up counts as well.
    users.hold(guests[0])
    users.held.vouch(guests[1:])
    assert users.held.holds(guests[0]) and not users.held.holds(guests[1])
    users.end()


def test_what_may_be_left_behind_at_once_fits_in_the_memory_that_is_spared_for_it():
    each_bytes = STEP_BYTES + PROCESS_BYTES
    assert STEPS.most * each_bytes <= SPARE_BYTES
    assert STEPS.most_of_one == MOST_OF_USER
    for gib in (8, 64, 1024):
        # The unit's MemoryHigh, 4 % of the host, has room for it beside what the agent itself may take, if
        # the host is full of small guests of libvirt, and each keeps both.
        own, left = host_limit_bytes(gib << 30), (gib << 30) // SMALL_GUEST_BYTES * each_bytes
        assert own + left <= 0.04 * (gib << 30)


class Waits:
    """Waits of 0.2 s for process 7, by a clock of its own, on a host that was up for long."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1e6
        self.held = Held(folder, lambda: self.now_s)
        self._stat = folder / "stat"
        self._stat.write_text("1 (step) S" + " 0" * 20)

    def wait(self, *, then_s: float, guests: frozenset[int] = frozenset({7})) -> None:
        # Of the first look it is not known whether it worked before.
        answers = iter([False, False, True])

        def ends_within(_: float) -> bool:
            self.now_s += 0.2
            return next(answers)

        self.held.await_end(7, ends_within, self._stat, lambda: True)
        self.now_s += then_s
        self.held.keep(set(guests))


def test_short_waits_are_remembered_from_look_to_look_on_a_host_that_was_up_for_long(tmp_path: Path):
    waits = Waits(tmp_path)
    for _ in range(5):
        waits.wait(then_s=4.0)
        assert not waits.held.holds(7)
    waits.wait(then_s=0.0)
    # Each look was followed by ``keep``, as the guest finder does.
    assert waits.held.holds(7)


def test_a_process_without_kvm_that_holds_readers_up_again_and_again_is_left_alone_longer_each_time(
    tmp_path: Path,
):
    waits = Waits(tmp_path)
    (tmp_path / "7").mkdir()
    left_alone_s = []
    for _ in range(3):
        for _ in range(2 * int(WAIT_S / 0.2)):
            if not waits.held.holds(7):
                waits.now_s += RENEW_S
                waits.wait(then_s=0.0, guests=frozenset())
        began = waits.now_s
        while waits.held.holds(7):
            waits.now_s += 0.5
            waits.held.keep(set())
        left_alone_s.append(waits.now_s - began)
    assert left_alone_s == [1, 2, 4]
    # Whose pid it is next has nothing to do with that.
    (tmp_path / "7").rmdir()
    for _ in range(2 * int(WAIT_S / 0.2)):
        waits.now_s += RENEW_S
        waits.wait(then_s=0.0, guests=frozenset())
    assert not waits.held.holds(7)


def test_a_process_that_has_readers_wait_for_hours_costs_little_of_them(tmp_path: Path):
    """It is read each second, and lets go after 0.6 s."""
    waits = Waits(tmp_path)
    began, cost_s = waits.now_s, 0.0
    while waits.now_s < began + 4 * 3600:
        before = waits.now_s
        if not waits.held.holds(7):
            with contextlib.suppress(HeldError):
                waits.wait(then_s=0.0)
        cost_s += waits.now_s - before
        waits.now_s += 1.0
    assert cost_s < 0.04 * 4 * 3600


def test_short_waits_that_come_seldom_are_nobodys_fault(tmp_path: Path):
    waits = Waits(tmp_path)
    for _ in range(50):
        waits.wait(then_s=100.0)
        assert not waits.held.holds(7)


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


class Loop:
    """A loop that asks each guest in turn by Held, by a declared clock; windows have a second besides."""

    def __init__(self, folder: Path, guests: int, hostile: int) -> None:
        self.now_s, self.waited_s = 1e6, 0.0
        self.held = Held(folder, lambda: self.now_s)
        self.guests, self.hostile = range(1, guests + 1), frozenset(range(1, hostile + 1))
        self.held.vouch(self.guests)
        self.asked: Counter[int] = Counter()
        self._stat = folder / "stat"
        self._stat.write_text("1 (step) S" + " 0" * 20)

    def window(self, waits: Callable[["Loop", int], None]) -> None:
        for pid in self.guests:
            if not self.held.holds(pid):
                self.asked[pid] += 1
                began = self.now_s
                with contextlib.suppress(HeldError):
                    waits(self, pid) if pid in self.hostile else self.sleeps(pid, 1e-5)
                self.waited_s += self.now_s - began
        self.now_s += 1.0

    def sleeps(self, pid: int, seconds: float) -> None:
        """A step that ends before it is looked at."""
        self.now_s += seconds
        self.held._note_short(pid, seconds)

    def waits(self, pid: int, seconds: float) -> None:
        """A step that is seen to wait, for so long at most."""
        until = self.now_s + seconds

        def ends_within(look_s: float) -> bool:
            self.now_s += min(look_s, until - self.now_s)
            return self.now_s >= until

        self.held.await_end(pid, ends_within, self._stat, lambda: self.now_s >= until)


@pytest.mark.parametrize("guests, hostile", [(200, 50), (200, 150), (20, 3)])
@pytest.mark.parametrize("how", ["shortly", "seen", "given up"])
def test_guests_that_have_readers_wait_slow_the_loop_little_however_many_they_are(
    tmp_path: Path, guests: int, hostile: int, how: str
):
    def waits(loop: Loop, pid: int) -> None:
        for _ in range(10):
            if not loop.held.holds(pid):
                if how == "shortly":
                    loop.sleeps(pid, 0.019)
                else:
                    loop.waits(pid, 0.09 if how == "seen" else 2.0)

    loop, began_s, windows = Loop(tmp_path, guests, hostile), 1e6, 0
    while loop.now_s < began_s + 3600:
        loop.window(waits)
        windows += 1
    print(guests, hostile, how, "windows", windows, "waited", loop.waited_s)
    assert all(loop.asked[pid] == windows for pid in loop.guests if pid not in loop.hostile)
    assert loop.waited_s < 0.25 * 3600


def test_guests_that_have_calls_wait_slow_the_loop_little_however_many_they_are(tmp_path: Path):
    """Calls that move pages wait a little each; 50 guests take all that they may, whenever they may."""
    loop = Loop(tmp_path, 50, 50)

    def waits(loop: Loop, pid: int) -> None:
        # Of the call that goes beyond it, too.
        took_s = loop.held.calls_may_wait_s(pid) + 0.055
        loop.now_s += took_s
        loop.held.note_waits(pid, took_s)

    while loop.now_s < 1e6 + 3600:
        loop.window(waits)
    assert loop.waited_s < 3600 / 3
    # Whoever comes when that is over may wait as long as one alone.
    loop.now_s += LONGEST_BACKOFF_S + 1
    assert loop.held.calls_may_wait_s(99) == MOST_S


def test_what_a_step_opens_that_ends_as_it_is_given_up_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reads, path = Held(tmp_path), tmp_path / "file"
    path.touch()
    await_end = reads.await_end

    def give_up_late(pid: int, ends_within: Callable[[float], bool], *rest: Any) -> None:
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


def test_a_step_that_works_may_take_long_and_its_cpu_time_is_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Nothing may take MOST_S, 30 s, and a busy machine may take that for a second and a half of work.
    monkeypatch.setattr("vmplace.held.WAIT_S", 0.2)
    reads = Held(tmp_path)

    def work() -> str:
        until = time.thread_time() + 0.3
        while time.thread_time() < until:
            pass
        return "done"

    before = thread_cpu_ns()
    assert reads.bounded(7, work) == "done"
    assert thread_cpu_ns() - before >= 0.3e9
    assert not reads.holds(7)
    reads.close()


def test_who_lets_go_each_time_just_before_is_left_alone_too(tmp_path: Path):
    """A declared clock shows above after how many: a machine that is busy sees less of each wait."""
    reads = Held(tmp_path)
    for _ in range(60):
        if not reads.holds(7):
            with contextlib.suppress(HeldError):
                reads.bounded(7, lambda: time.sleep(0.3))
    assert reads.holds(7)
    with pytest.raises(HeldError):
        reads.bounded(7, lambda: None)
    assert reads.bounded(8, lambda: 3) == 3
    reads.close()


def test_a_child_that_was_forked_has_threads_of_its_own():
    assert bounded(1, lambda: 1) == 1
    pid = os.fork()
    if not pid:
        os._exit(bounded(1, lambda: 5))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5


def test_what_a_step_raises_is_raised(tmp_path: Path):
    reads = Held(tmp_path)

    def fail() -> None:
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        reads.bounded(7, fail)
    assert reads.bounded(7, lambda: reads.bounded(7, lambda: 1)) == 1
    reads.close()


def test_a_guest_that_holds_readers_up_is_not_touched_and_costs_no_other():
    world = World([guest("evil"), guest("good")])
    parts = Parts(world, world, world.policy, "auto", world, holds=lambda one: one.name == "evil")
    agent = Agent(LoadedConfig(Config(window_ms=20, longest_rest_ms=0)), parts, world.wakeup)
    agent.run(windows=2)
    assert set(world.armed) == {"good"}
    assert world.applied == ["good"]
    problems = {name: one.problem for name, one in agent.status.guests.items()}
    assert problems == {"evil": HELD, "good": None}


def test_a_process_that_no_thread_can_ask_counts_as_one_that_holds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    put(tmp_path, 1, held=False)
    reported = Held(tmp_path)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert reported.probe(1)
    assert "can't start new thread" in caplog.text
    assert not reported.probe(1)
    reported.close()


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
