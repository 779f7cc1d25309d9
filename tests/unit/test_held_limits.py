"""How many processes may block readers, by user, until that user is left alone (held_limits.py)."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.unit.held_process import MOST_OF_USER, put
from tests.unit.nobody import needs_nobody
from vmplace.held import (
    Held,
    HeldError,
)
from vmplace.held_limits import COUNTING_BYTES, PROCESS_BYTES, STEP_BYTES, STEPS
from vmplace.step_thread import Job
from vmplace.topology.memory_budget import SPARE_BYTES, host_limit_bytes
from vmplace.users import Users as SubordinateIds

SMALL_GUEST_BYTES = 128 << 20


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
@pytest.mark.parametrize("how", ["asked", "closed"])
def test_processes_that_are_gone_as_their_steps_are_given_up_count_with_their_user(tmp_path: Path, how: str):
    """Their memory maps may live on, and have whoever was the last to read them wait."""
    users = Users(tmp_path)
    his, others = users.process(7), users.process(8)
    give_up = {"asked": gone_as_it_is_asked, "closed": gone_before_it_is_closed}[how]
    for _ in range(MOST_OF_USER):
        assert not users.held.holds(his)
        give_up(users, users.process(7))
    assert users.held.holds(his)
    assert not users.held.holds(others)
    users.end()


def gone_as_it_is_asked(users: Users, pid: int) -> None:
    def ask() -> None:
        shutil.rmtree(users.proc / str(pid))
        users.go_on.wait()

    with pytest.raises(HeldError):
        users.held.bounded(pid, ask)


def gone_before_it_is_closed(users: Users, pid: int) -> None:
    fd = users.held.opened(pid, lambda: os.open(os.devnull, os.O_RDONLY))
    shutil.rmtree(users.proc / str(pid))
    # The thread that is to close it stands for one that closing has wait.
    users.held._idle[-1].begin(Job(users.go_on.wait))
    with pytest.raises(HeldError):
        users.held.closed(pid, fd)


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
    each_bytes = STEP_BYTES + PROCESS_BYTES + COUNTING_BYTES
    assert STEPS.most * each_bytes <= SPARE_BYTES
    assert STEPS.most_of_one == MOST_OF_USER
    for gib in (8, 64, 1024):
        # The unit's MemoryHigh, 4 % of the host, has room for it beside what the agent itself may take, if
        # the host is full of small guests of libvirt, and each keeps all three.
        own, left = host_limit_bytes(gib << 30), (gib << 30) // SMALL_GUEST_BYTES * each_bytes
        assert own + left <= 0.04 * (gib << 30)
