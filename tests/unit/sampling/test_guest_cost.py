"""Costs of real threads by perf events; software events stand for cycles and instructions, which few
virtual machines count."""

import os
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vmplace import counting
from vmplace.errors import UnsupportedHostError
from vmplace.held import HeldError
from vmplace.sampling.counters_perf import PerfCounters
from vmplace.sampling.dram_events import INTEL, LOCAL, REMOTE
from vmplace.sampling.guest_cost import LEAST_INSTRUCTIONS, MemoryRate, PerfCost, lar_of
from vmplace.topology.guest import GuestTopology, Vcpu

# linux/perf_event.h: PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK and PERF_COUNT_SW_TASK_CLOCK, both in ns.
CLOCKS = {"cycles": (1, 0), "instructions": (1, 1)}
DRAM = {"dram": (1, 1)}
"""The task clock stands for accesses, too: few virtual machines count these."""
BUSY_NS = 20_000_000


def guest(*tids: int) -> GuestTopology:
    vcpus = tuple(Vcpu(i, tid, (0, 1)) for i, tid in enumerate(tids))
    return GuestTopology("db1", os.getpid(), 1, "kvm", vcpus, ())


def counting_processes() -> list[Path]:
    """Return this process, and those that it started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [Path("/proc/self"), *(Path("/proc") / child for child in children)]


def counters() -> int:
    """Count the perf events that are open, whichever process has them."""
    links = (fd for process in counting_processes() for fd in (process / "fd").iterdir())
    return sum("perf_event" in str(link.readlink()) for link in links if link.is_symlink())


def work(ns: int) -> None:
    start = time.thread_time_ns()
    while time.thread_time_ns() - start < ns:
        pass


@pytest.fixture
def speed() -> Iterator[PerfCost]:
    try:
        opened = PerfCost(CLOCKS, dram=DRAM)
    except UnsupportedHostError:
        pytest.skip("perf events are not permitted")
    yield opened
    opened.close()


def test_a_window_costs_what_its_thread_spent(speed: PerfCost) -> None:
    me = guest(threading.get_native_id())
    assert speed.cost(me) is None
    work(BUSY_NS)
    # Both clocks run while the thread does: one ns per ns.
    assert speed.cost(me) == pytest.approx(1.0, rel=0.2)


def test_how_busy_a_window_was_is_reported_beside_its_cost(speed: PerfCost) -> None:
    me = guest(threading.get_native_id())
    speed.cost(me)
    assert speed.rate(me) is None
    work(BUSY_NS)
    speed.cost(me)
    rate = speed.rate(me)
    # Of an access each ns that the thread ran, a thousand make a microsecond.
    assert (
        rate is not None
        and rate.cpus is not None
        and rate.dram_per_us == pytest.approx(1000 * rate.cpus, rel=0.05)
    )
    assert 0 < rate.cpus < 1.2
    assert (rate.waits is None) != Path("/proc/self/schedstat").exists()


def counted_rate(dram: dict[str, tuple[int, int]]) -> MemoryRate | None:
    """Return what a thread that works is counted to do by these events."""
    try:
        counted = PerfCost(CLOCKS, dram=dram)
    except UnsupportedHostError:
        pytest.skip("perf events are not permitted")
    me = guest(threading.get_native_id())
    counted.cost(me)
    work(BUSY_NS)
    counted.cost(me)
    rate = counted.rate(me)
    counted.close()
    return rate


@pytest.mark.parametrize(
    ("dram", "lar"),
    [
        # Each event of a thread counts the same time: half of these accesses are local.
        ({LOCAL: (1, 1), REMOTE: (1, 1)}, 0.5),
        # Nobody moves this thread from CPU to CPU every few ns: nearly all are local.
        ({LOCAL: (1, 1), REMOTE: (1, 4)}, 1.0),
        ({LOCAL: (1, 1), REMOTE: (1, 999)}, None),
        (DRAM, None),
    ],
    ids=["both", "local", "one absent", "not told apart"],
)
def test_which_share_its_own_node_served_is_reported(
    dram: dict[str, tuple[int, int]], lar: float | None
) -> None:
    rate = counted_rate(dram)
    assert rate is not None and not rate.misses_cpuless
    assert rate.lar == (None if lar is None else pytest.approx(lar, abs=0.01))


def test_events_that_do_not_count_all_memory_are_known_by_what_is_counted() -> None:
    rate = counted_rate(INTEL)
    assert rate is not None and rate.misses_cpuless


@pytest.mark.parametrize(
    ("local", "remote", "lar"),
    [
        (3000.0, 1000.0, 0.75),
        (0.0, 1000.0, 0.0),
        (1000.0, 0.0, 1.0),
        (0.0, 0.0, None),
        # All of three, or of 999, is chance.
        (3.0, 0.0, None),
        (999.0, 0.0, None),
        # Counters that began anew.
        (-5000.0, 10_000.0, None),
        (10_000.0, -5000.0, None),
    ],
)
def test_a_share_is_of_enough_accesses(local: float, remote: float, lar: float | None) -> None:
    assert lar_of(local, remote) == lar


def test_what_was_counted_once_is_not_kept_where_counting_fails(
    speed: PerfCost, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = guest(threading.get_native_id())
    for _ in range(2):
        speed.cost(me)
        work(BUSY_NS)
    assert speed.rate(me) is not None

    def fails(_: PerfCounters) -> dict[str, float | None]:
        raise HeldError

    monkeypatch.setattr(PerfCounters, "counts", fails)
    with pytest.raises(HeldError):
        speed.cost(me)
    assert speed.rate(me) is None


def test_an_idle_window_has_no_cost(speed: PerfCost) -> None:
    me = guest(threading.get_native_id())
    speed.cost(me)
    assert BUSY_NS > LEAST_INSTRUCTIONS
    # What passes while a hypervisor has the CPU counts; it has it in some windows.
    assert any(speed.cost(me) is None for _ in range(20))


def test_other_threads_begin_anew_and_descriptors_go_with_the_guest(speed: PerfCost) -> None:
    before, tid = counters(), threading.get_native_id()
    speed.cost(guest(tid))
    assert counters() - before == 4
    work(BUSY_NS)
    assert speed.cost(guest(tid, tid)) is None
    assert counters() - before == 8
    speed.forget(guest(tid, tid))
    assert counters() - before == 0


def test_a_guest_for_which_descriptors_do_not_suffice_keeps_none(speed: PerfCost) -> None:
    before, tid, limits = counters(), threading.get_native_id(), resource.getrlimit(resource.RLIMIT_NOFILE)
    # The process that counts inherits it.
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    try:
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                speed.cost(guest(*[tid] * 30))
            assert counters() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_guest_of_very_many_vcpus_takes_no_more_descriptors_than_it_may_have(speed: PerfCost) -> None:
    before, me = counters(), guest(*[threading.get_native_id()] * 1000)
    assert speed.cost(me) is None
    began_s, ran_s = time.monotonic(), time.thread_time()
    assert 0 < counters() - before <= counting.MOST_EVENTS
    work(BUSY_NS)
    assert speed.cost(me) == pytest.approx(1.0, rel=0.2)
    # Each of the thousand is this thread, which has a part of a CPU.
    share, rate = (time.thread_time() - ran_s) / (time.monotonic() - began_s), speed.rate(me)
    assert rate is not None and rate.cpus == pytest.approx(1000 * share, rel=0.5)
    speed.close()
    speed.close()
    assert counters() == before


def test_a_cpu_that_does_not_count_is_reported() -> None:
    with pytest.raises(UnsupportedHostError, match="does not count instructions"):
        PerfCost(CLOCKS | {"instructions": (1, 999)})


def test_accesses_are_split_by_the_cpus_that_vcpus_may_run_on(speed: PerfCost) -> None:
    """This thread works; the other one waits."""
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        vcpus = Vcpu(0, threading.get_native_id(), (0,)), Vcpu(1, other.native_id or 0, (1,))
        mine = replace(guest(), vcpus=vcpus)
        speed.cost(mine)
        work(BUSY_NS)
        speed.cost(mine)
        rate = speed.rate(mine)
    finally:
        done.set()
        other.join()
    assert rate is not None and rate.dram_per_us is not None
    assert [one[:2] for one in rate.by_cpus] == [((0,), 1), ((1,), 1)]
    busy, idle = (one[2] or 0.0 for one in rate.by_cpus)
    assert busy > 0.9 * rate.dram_per_us and idle < 0.1 * rate.dram_per_us


def test_vcpus_that_may_run_on_the_same_cpus_are_not_apart(speed: PerfCost) -> None:
    me = guest(threading.get_native_id(), threading.get_native_id())
    speed.cost(me)
    work(BUSY_NS)
    speed.cost(me)
    assert (rate := speed.rate(me)) is not None and rate.by_cpus == ()
