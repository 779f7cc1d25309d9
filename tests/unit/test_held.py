"""A process that holds up whoever reads its memory map is left alone, and holds up nobody.

A FIFO without a writer stands for a file of /proc whose reader waits for the lock of a process' mappings; the
real thing is in tests/native/test_held_guests.py.
"""

import os
import threading
import time
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.held_process import MOST_OF_USER, Counted, let_go, put
from tests.unit.test_thread_waits import StepOfSeconds
from vmplace.agent.config import LoadedConfig
from vmplace.agent.config_sections import Config
from vmplace.agent.loop import Agent
from vmplace.agent.parts import Parts
from vmplace.cpu_time import thread_cpu_ns
from vmplace.held import (
    HELD,
    LOOK_S,
    WAIT_S,
    Held,
    HeldError,
    bounded,
)


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
