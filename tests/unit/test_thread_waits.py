"""A thread that waits is distinguished from one that works, or that has no CPU."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from vmplace import thread_waits
from vmplace.held import LEAST_WAIT_S, LOOK_S, MOST_S, WAIT_S, Held, HeldError
from vmplace.thread_waits import ThreadTimes

NOTHING_S = 1e-6


class Declared(ThreadTimes):
    """A thread that sleeps, works and waits for a CPU by declaration: ``now`` and ``busy`` are in ns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.close()
        self._fd, self.now, self.busy = -1, 1_000, 1_000
        monkeypatch.setattr(thread_waits, "time", SimpleNamespace(monotonic_ns=lambda: self.now))

    def _read(self) -> bytes:
        # Kernel's Documentation/scheduler/sched-stats.rst: ns on a CPU, ns in its queue, timeslices.
        return f"{self.busy // 2} {self.busy - self.busy // 2} 9\n".encode()

    def slept_s_of(self, *, sleeps_s: float, works_s: float = 0.0, queued_s: float = 0.0) -> float:
        """Return what counts of a step."""
        self.begin()
        self.now += int((sleeps_s + works_s + queued_s) * 1e9)
        self.busy += int((works_s + queued_s) * 1e9)
        return self.slept_s(int(works_s * 1e9))


def test_of_a_step_counts_what_it_sleeps_beyond_a_millisecond_and_thrice_its_work(
    monkeypatch: pytest.MonkeyPatch,
):
    times = Declared(monkeypatch)
    assert times.slept_s_of(sleeps_s=0.015) == pytest.approx(0.014)
    assert times.slept_s_of(sleeps_s=0.015, works_s=0.001) == pytest.approx(0.011)
    assert times.slept_s_of(sleeps_s=0.004, works_s=0.004) == 0
    assert times.slept_s_of(sleeps_s=0.0009) == 0
    # A CPU that others have for ten times as long: it works little, but does not sleep.
    assert times.slept_s_of(sleeps_s=0.004, works_s=0.004, queued_s=0.04) == 0
    assert times.slept_s_of(sleeps_s=0.0, works_s=0.001, queued_s=3.0) == 0


@pytest.mark.parametrize("slept_s, held_after", [(0.014, 43), (0.125, 5), (0.0, None)])
def test_many_waits_that_are_too_short_to_be_looked_at_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slept_s: float, held_after: int | None
):
    """A large guest is read in thousands of steps: 15 ms in each of them would be minutes in each window."""
    monkeypatch.setattr("vmplace.held.SHORT_WAITS_S", 0.6)
    monkeypatch.setattr("vmplace.held.LOOK_S", 60.0)
    monkeypatch.setattr(ThreadTimes, "slept_s", lambda *_: slept_s)
    now_s = 1e6
    reads = Held(tmp_path, lambda: now_s)
    for _ in range(held_after or 100):
        assert not reads.holds(7)
        reads.bounded(7, lambda: None)
        now_s += NOTHING_S
    assert reads.holds(7) == (held_after is not None) and not reads.holds(8)
    reads.close()


def test_a_thread_that_sleeps_is_seen_to_by_the_kernels_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """For long enough to differ from a wait for a CPU that others have."""
    monkeypatch.setattr("vmplace.held.SHORT_WAITS_S", 0.2)
    monkeypatch.setattr("vmplace.held.LOOK_S", 60.0)
    reads = Held(tmp_path)
    for _ in range(100):
        if not reads.holds(7):
            reads.bounded(7, lambda: time.sleep(0.15))
    assert reads.holds(7) and not reads.holds(8)
    reads.close()


@pytest.mark.slow
def test_a_thread_that_waits_for_a_cpu_is_nobodys_fault_by_the_kernels_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One that gets a CPU only when nobody wants it: it waits for far longer than it works."""
    monkeypatch.setattr("vmplace.held.SHORT_WAITS_S", 0.05)
    reads = Held(tmp_path)

    def work() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass

    cpus = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            os.sched_setaffinity(busy.pid, {min(cpus)})
            os.sched_setaffinity(0, {min(cpus)})
            for _ in range(5):
                reads.bounded(7, work)
        finally:
            os.sched_setaffinity(0, cpus)
            busy.kill()
    assert not reads.holds(7)
    reads.close()


class StepOfSeconds:
    """A step that takes ``takes_s`` of a clock that goes on by nothing else; counts the looks at it.

    ``works`` is the share of that time that it runs or waits for a CPU.
    """

    def __init__(self, stat: Path, takes_s: float, *, works: float) -> None:
        self.now_s, self.looks = 0.0, 0
        self._stat, self._takes_s, self._works = stat, takes_s, works
        self._write()

    def clock(self) -> float:
        return self.now_s

    def ends_within(self, seconds: float) -> bool:
        self.now_s, self.looks = self.now_s + seconds, self.looks + 1
        self._write()
        return self.now_s >= self._takes_s

    def _write(self) -> None:
        # /proc/PID/stat, proc_pid_stat(5): the state is field 3, utime and stime are 14 and 15, in ticks.
        busy_s = 0.07 + self.now_s * self._works
        self._stat.write_text(f"9 (step) S{' 0' * 10} {int(busy_s * 100)} 0 {'0 ' * 30}\n")
        # Kernel's Documentation/scheduler/sched-stats.rst: ns on a CPU, ns in its queue, timeslices.
        self._stat.with_name("schedstat").write_text(f"{int(busy_s * 5e8)} {int(busy_s * 5e8)} 9\n")


def test_a_step_that_works_for_long_is_looked_at_a_few_times_a_second(tmp_path: Path):
    step = StepOfSeconds(tmp_path / "stat", 3.0, works=1.0)
    Held(tmp_path, step.clock).await_end(7, step.ends_within, tmp_path / "stat", lambda: True)
    assert step.looks <= 30


@pytest.mark.parametrize("patience_s", [LEAST_WAIT_S, WAIT_S])
def test_a_step_that_waits_is_given_up_as_soon_as_patience_ends(tmp_path: Path, patience_s: float):
    step = StepOfSeconds(tmp_path / "stat", 60.0, works=0.0)
    with pytest.raises(HeldError):
        Held(tmp_path, step.clock).await_end(
            7, step.ends_within, tmp_path / "stat", lambda: False, patience_s
        )
    assert patience_s <= step.now_s <= patience_s + 3 * LOOK_S


@pytest.mark.parametrize("works, gives_up", [(0.1, True), (0.2, True), (0.3, False), (0.9, False)])
def test_a_step_that_works_a_little_between_waits_is_given_up(tmp_path: Path, works: float, gives_up: bool):
    """A tenth of real time would be more on a busy machine: who waits for a CPU holds nobody up."""
    step = StepOfSeconds(tmp_path / "stat", MOST_S / 2, works=works)
    with pytest.raises(HeldError) if gives_up else contextlib.nullcontext():
        Held(tmp_path, step.clock).await_end(7, step.ends_within, tmp_path / "stat", lambda: False)
    assert (step.now_s >= MOST_S / 2) != gives_up
    # It is its waits that have an end.
    assert not gives_up or WAIT_S <= step.now_s * (1 - works) <= WAIT_S + LEAST_WAIT_S


def test_no_step_takes_longer_than_a_cap_whatever_it_does(tmp_path: Path):
    step = StepOfSeconds(tmp_path / "stat", 10 * MOST_S, works=1.0)
    with pytest.raises(HeldError):
        Held(tmp_path, step.clock).await_end(7, step.ends_within, tmp_path / "stat", lambda: False)
    assert MOST_S <= step.now_s < MOST_S + 1
