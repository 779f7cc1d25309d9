"""Processes that have readers wait for a while, again and again, cost the others little (held.py)."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from vmplace.held import (
    MOST_S,
    RENEW_S,
    WAIT_S,
    Held,
    HeldError,
)
from vmplace.held_limits import LONGEST_BACKOFF_S


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


@pytest.mark.slow
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
