"""Counters of the kernel on threads of our own, whose work is known; and how turns are made up for."""

import mmap
import os
import threading
import time
from pathlib import Path

import pytest

from vmplace import counting
from vmplace.errors import UnsupportedHostError, VmplaceError
from vmplace.sampling.counters_perf import Count, PerfCounters

# linux/perf_event.h: PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK and PERF_COUNT_SW_PAGE_FAULTS
SOFTWARE = {"task_clock": (1, 1), "page_faults": (1, 2), "absent": (1, 999)}
NO_THREAD = 1 << 22
"""The kernel gives no id from here on (PID_MAX_LIMIT)."""


@pytest.fixture
def counters() -> PerfCounters:
    try:
        return PerfCounters([threading.get_native_id()], SOFTWARE)
    except UnsupportedHostError:
        pytest.skip("perf events are not permitted")


def test_counts_are_of_the_thread_and_since_the_last_look(counters: PerfCounters) -> None:
    spells = []
    for _ in range(20):
        counters.counts()
        started = time.thread_time_ns()
        while time.thread_time_ns() - started < 50_000_000:
            pass
        spells.append((counters.counts()["task_clock"], time.thread_time_ns() - started))
        spells.append((counters.counts()["task_clock"], 0))
        if counts_cpu_time(spells[-2:]):
            break
    # This clock does not stop while a hypervisor has the CPU, as the other may; it has it in some spells.
    assert counts_cpu_time(spells[-2:]), spells
    counters.close()


def counts_cpu_time(spells: list[tuple[float | None, int]]) -> bool:
    """Tell whether each count is the CPU time beside it, within 20%, or 10 ms."""
    return all(count == pytest.approx(cpu_ns, rel=0.2, abs=10_000_000) for count, cpu_ns in spells)


def test_each_page_that_is_touched_first_is_a_fault(counters: PerfCounters) -> None:
    counters.counts()
    area = mmap.mmap(-1, 256 * mmap.PAGESIZE)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(256):
        area[page * mmap.PAGESIZE] = 1
    assert counters.counts()["page_faults"] == pytest.approx(256, abs=16)
    counters.close()


def test_an_event_that_the_machine_lacks_has_no_answer(counters: PerfCounters) -> None:
    assert counters.counts()["absent"] is None
    counters.close()


def test_once_the_process_that_counted_is_dead_another_one_counts_anew(counters: PerfCounters) -> None:
    (process,) = counting._PROCESSES.values()
    process._process.kill()
    with pytest.raises(VmplaceError, match="ended"):
        counters.counts()
    assert set(counters.counts().values()) == {None}
    started = time.thread_time_ns()
    while time.thread_time_ns() - started < 20_000_000:
        pass
    assert (counters.counts()["task_clock"] or 0) >= 20_000_000
    counters.close()
    counting.close()


def test_each_guest_is_counted_by_a_process_of_its_own_and_none_stays_without_work(
    counters: PerfCounters,
) -> None:
    several = [PerfCounters([os.getpid()], {"clock": (1, 1)}, pid=os.getpid()) for _ in range(3)]
    assert len({process._process.pid for process in counting._PROCESSES.values()}) == 4
    processes = [process._process for process in counting._PROCESSES.values()]
    assert all(None not in one.counts().values() for one in several)
    for one in (counters, *several):
        one.close()
    assert not counting._PROCESSES
    # They end by themselves, with what they counted closed.
    assert {process.wait(60) for process in processes} == {0}


def test_of_a_guest_with_very_many_threads_some_are_counted_and_stand_for_all() -> None:
    """Here all of them are this thread; the machine says how long it ran."""
    threads = 10 * counting.MOST_EVENTS
    try:
        counters = PerfCounters([threading.get_native_id()] * threads, {"task_clock": (1, 1)})
    except UnsupportedHostError:
        pytest.skip("perf events are not permitted")
    counters.counts()
    started = time.thread_time_ns()
    while (ran_ns := time.thread_time_ns() - started) < 50_000_000:
        pass
    counted = counters.counts()["task_clock"]
    # The look itself reads hundreds of counters, and this thread runs meanwhile.
    least, most = threads * ran_ns, threads * (time.thread_time_ns() - started)
    assert counted is not None and 0.7 * least <= counted <= 1.3 * most
    counters.close()


def test_of_a_guest_with_too_many_threads_those_at_equal_distances_are_counted() -> None:
    try:
        ours = threading.get_native_id()
        # Threads that are gone are left out of a sum: of four, the first and the third are asked for.
        most = counting.MOST_EVENTS // 2
        events = {str(n): (1, 1) for n in range(most)}
        counters = PerfCounters([ours, NO_THREAD, ours, NO_THREAD], events)
    except UnsupportedHostError:
        pytest.skip("perf events are not permitted")
    assert all(count is not None for count in counters.counts().values())
    assert [tid for _, _, tid in counters._events] == [ours] * 2 * most
    counters.close()


def test_more_events_than_may_be_counted_are_too_many_even_for_one_thread() -> None:
    events = {str(n): (1, 1) for n in range(counting.MOST_EVENTS + 1)}
    with pytest.raises(OSError, match="Too many open files"):
        PerfCounters([threading.get_native_id()], events)


def test_a_thread_that_has_ended_is_left_out() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    # Python's join returns a little before the kernel's thread has ended.
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        time.sleep(0.001)
    gone = PerfCounters([thread.native_id or 0], {"task_clock": (1, 1)})
    assert gone.counts() == {"task_clock": None}


@pytest.mark.parametrize(
    ("threads", "count"),
    [
        ([(100, 10, 10), (50, 10, 5)], 200.0),
        ([(0, 0, 0), (0, 0, 0)], 0.0),
        # Both did ten a ns; the third ran for half of their time in all, and had no turn.
        ([(100, 10, 10), (100, 10, 10), (0, 10, 0)], 300.0),
        ([(100, 10, 10), (0, 10, 0)], None),
        ([(0, 1, 0), (0, 0, 0)], None),
        ([(100, 100, 10), (0, 10, 0), (0, 0, 0)], 1100.0),
    ],
    ids=["turns", "idle", "one missed", "half missed", "all missed", "a short one missed"],
)
def test_threads_without_a_turn_count_as_the_others_if_these_ran_for_most_of_the_time(
    monkeypatch: pytest.MonkeyPatch, threads: list[tuple[int, int, int]], count: float | None
) -> None:
    """Each thread: value, ns that it was wanted, ns that it was counted."""
    counted = [[(0, 0, 0, 0)] * len(threads), [(0, *one) for one in threads]]
    monkeypatch.setattr(counting, "count", lambda *_: (False, counted.pop(0)))
    counters = PerfCounters(range(len(threads)), {"reads": (1, 1)})
    assert counters.counts() == {"reads": None if count is None else pytest.approx(count)}


def test_a_count_of_half_the_time_is_doubled() -> None:
    assert Count(10, 100, 50).scaled == 20
    assert Count(30, 300, 200).since(Count(10, 100, 100)) == Count(20, 200, 100)


def test_counts_of_threads_are_known_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two events of three threads; the third had no turn for the second event."""
    now = [(0, 10, 1, 1), (0, 1, 1, 1), (0, 20, 1, 1), (0, 2, 1, 1), (0, 40, 1, 1), (0, 0, 9, 0)]
    counted = [[(0, 0, 0, 0)] * 6, now]
    monkeypatch.setattr(counting, "count", lambda *_: (False, counted.pop(0)))
    counters = PerfCounters([7, 8, 9], {"local": (1, 1), "remote": (1, 2)})
    assert counters.counted_of(["local"], [7]) is None
    counters.counts()
    assert counters.counted_of(["local", "remote"], [7]) == 11
    assert counters.counted_of(["local"], [7, 9]) == 50
    assert counters.counted_of(["remote"], [9]) is None
    assert counters.counted_of(["local"], [10]) is None
    assert counters.counted_of(["absent"], [7]) is None
