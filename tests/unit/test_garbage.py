"""No step frees garbage that is in cycles: it would close descriptors by their number in the wrong table."""

import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.descriptors import descriptors
from vmplace.agent.config import LoadedConfig
from vmplace.agent.config_sections import Config
from vmplace.agent.loop import Agent
from vmplace.agent.parts import Parts
from vmplace.garbage import COLLECTION, FULL_SHARE, Collector, passing_over_what_is_there
from vmplace.held import Held, HeldError
from vmplace.step_thread import Job, Worker


class Cycle:
    def __init__(self) -> None:
        self.own = self


@contextmanager
def collectors(who: Callable[[], object] = lambda: current_thread().name) -> Iterator[set[object]]:
    """Note which threads collect, by their names or by what ``who`` returns."""
    found: set[object] = set()

    def note(_phase: str, _about: object) -> None:
        found.add(who())

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


@pytest.fixture(autouse=True)
def steps_of_other_tests_have_ended() -> None:
    until_enabled()


def until_enabled() -> None:
    until = time.monotonic() + 60
    while not gc.isenabled() and time.monotonic() < until:
        time.sleep(0.01)
    assert gc.isenabled()


@pytest.fixture
def paused(steps_of_other_tests_have_ended: None) -> Iterator[None]:
    COLLECTION.pause()
    yield
    COLLECTION.resume()


def make_garbage() -> None:
    for _ in range(20 * gc.get_threshold()[0]):
        Cycle()


def test_a_step_collects_nothing_and_who_comes_after_it_does(tmp_path: Path):
    reads = Held(tmp_path)
    with collectors() as names:
        for _ in range(20):
            reads.bounded(7, make_garbage)
        make_garbage()
        assert names == {current_thread().name}
    reads.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_step_closes_no_file_among_the_garbage(tmp_path: Path):
    """Its number is that of something else in the table of the step's thread, such as its socket."""
    reads = Held(tmp_path)
    # Its thread is there, and none is made below: it would have numbers of files that are closed.
    reads.bounded(7, lambda: None)
    before = descriptors()
    for _ in range(20):
        files = [os.fdopen(os.open(os.devnull, os.O_RDONLY), "rb") for _ in range(32)]
        for file in files:
            cycle: list[object] = [file]
            cycle.append(cycle)
        del cycle, file, files
        reads.bounded(7, make_garbage)
        os.close(reads.opened(7, lambda: os.open(os.devnull, os.O_RDONLY)))
        gc.collect()
        assert descriptors() <= before
    reads.close()


def test_a_step_that_was_given_up_keeps_it_paused_until_it_ends(tmp_path: Path):
    reads, go_on = Held(tmp_path), threading.Event()
    with pytest.raises(HeldError):
        reads.bounded(7, go_on.wait)
    assert not gc.isenabled()
    go_on.set()
    until_enabled()
    reads.close()


def test_a_thread_that_was_given_up_collects_nothing_as_it_ends():
    """What threading does in it once its steps are done makes objects, too."""
    workers, given_up = [Worker() for _ in range(10)], threading.Event()

    def make_garbage_late() -> None:
        given_up.wait()
        make_garbage()

    with collectors(threading.get_native_id) as ids:
        for worker in workers:
            worker.begin(Job(make_garbage_late))
            worker.end()
        given_up.set()
        for worker in workers:
            worker.join()
        make_garbage()
    assert ids == {threading.get_native_id()}


def test_who_resumes_collects_nothing_though_no_free_object_is_left():
    """Python keeps tuples that were freed: with none of them, to leave a "with" makes a new one."""
    COLLECTION.pause()
    make_garbage()
    with collectors(lambda: sys._getframe(2).f_code.co_name) as functions:
        kept = [(number, number, number) for number in range(1 << 14)]
        COLLECTION.resume()
        make_garbage()
    assert functions and "resume" not in functions and kept


def test_who_has_it_off_keeps_it_off(tmp_path: Path):
    reads = Held(tmp_path)
    gc.disable()
    try:
        reads.bounded(7, lambda: None)
        reads.close()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_forked_child_collects_though_a_step_is_done_by_its_parent(paused: None):
    pid = os.fork()
    if not pid:
        os._exit(0 if gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.slow
def test_what_is_due_is_collected_by_who_asks_and_no_more_than_that(paused: None):
    collect_due = Collector(clock=lambda: 0).collect_due
    gc.collect()
    with collectors() as names:
        collect_due()
        assert names == set()
        one = weakref.ref(Cycle())
        make_garbage()
        assert one() is not None
        collect_due()
        assert one() is None and names == {current_thread().name}
        # Each generation in its turn.
        old = weakref.ref(kept := Cycle())
        for _ in range(3):
            gc.collect(1)
        del kept
        for _ in range(200):
            make_garbage()
            collect_due()
            if old() is None:
                break
        assert old() is None


@pytest.mark.slow
def test_looking_through_all_objects_takes_a_bounded_share_of_the_time(paused: None):
    full_ns, step_ns, now_ns, full = 50_000_000, 1_000_000, [0], [0]

    def count(phase: str, about: dict[str, int]) -> None:
        if phase == "stop" and about["generation"] == 2:
            full[0] += 1
            now_ns[0] += full_ns

    collector = Collector(clock=lambda: now_ns[0])
    gc.callbacks.append(count)
    try:
        for _ in range(20_000):
            for _ in range(gc.get_threshold()[1] + 1):
                gc.collect(1)
            collector.collect_due()
            now_ns[0] += step_ns
    finally:
        gc.callbacks.remove(count)
    assert full[0] > 1
    assert full[0] * full_ns <= 2 * FULL_SHARE * now_ns[0]


def test_what_was_there_before_is_not_looked_through_until_the_end(paused: None):
    before = weakref.ref(Cycle())
    kept = Cycle()
    still = weakref.ref(kept)
    with passing_over_what_is_there():
        assert before() is None
        del kept
        later = weakref.ref(Cycle())
        gc.collect()
        assert later() is None and still() is not None
    gc.collect()
    assert still() is None


def test_the_loop_collects_what_is_due(paused: None):
    world = World([guest("db1")])
    parts = Parts(world, world, world.policy, "auto", world)
    agent = Agent(LoadedConfig(Config(window_ms=20, longest_rest_ms=0)), parts, world.wakeup)
    one = weakref.ref(Cycle())
    make_garbage()
    agent.run(windows=2)
    assert one() is None


def test_the_loop_collects_what_is_due_where_no_time_is_left_for_a_rest(paused: None):
    world = World([guest("db1")])
    agent = Agent(LoadedConfig(Config()), Parts(world, world, world.policy, "auto", world), world.wakeup)
    one = weakref.ref(Cycle())
    make_garbage()
    agent.waits.rest(-1.0, until_asked=False)
    assert one() is None
