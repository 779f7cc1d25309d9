"""A process that holds up who counts what its threads do costs no other guest its counters (counting.py)."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.native.holders import Holder, run_holder
from tests.native.test_held_guests import PATIENCE_S, execs, holder, left_for, own_bytes, within
from tests.unit.actuation.child_guest import child_guest
from tests.unit.nobody import needs_nobody
from vmplace import counting, held
from vmplace.held import HeldError
from vmplace.held_limits import COUNTING_BYTES
from vmplace.left_behind import NAME
from vmplace.sampling.counters_perf import PerfCounters

__all__ = ["execs", "holder"]
pytestmark = needs_nobody
SOFTWARE, TASK_CLOCK = 1, 1
"""PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK."""


def unreclaimable_bytes() -> int:
    """Return what the kernel has of objects that it cannot give back, all processes together."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("SUnreclaim:"))


def test_processes_that_count_and_are_left_behind_keep_no_more_than_is_counted_for_them(program: Path):
    """Guests of very many vCPUs; the kernel's memory is measured, so there are many processes."""
    events = {f"clock {n}": (SOFTWARE, TASK_CLOCK) for n in range(8)}
    processes, stack_bytes = 24, 16 << 10
    with run_holder([program]) as evil:
        before = unreclaimable_bytes()
        several = [PerfCounters([evil.pid] * 1024, events, pid=evil.pid) for _ in range(processes)]
        pids = [process._process.pid for process in counting._PROCESSES.values()]
        assert len(pids) == processes
        evil.tell(b"p")
        with pytest.raises(HeldError):
            several[0].counts()
        counting.close()
        kernel_bytes = (unreclaimable_bytes() - before) / processes
        # All of them are still there, and have their events.
        assert set(pids) == set(left_for(evil))
        own = max(map(own_bytes, pids[1:]))
        assert kernel_bytes > 64 * 1352 and own + stack_bytes + kernel_bytes <= COUNTING_BYTES


def test_counters_of_a_process_that_waits_in_exec_are_given_up_and_no_other_thread_waits(execs: Holder):
    """perf_event_open(2) takes exec_update_lock: with the interpreter's lock held, all of the agent waits."""
    with within(PATIENCE_S), pytest.raises(HeldError):
        PerfCounters([execs.pid], {"task_clock": (SOFTWARE, TASK_CLOCK)}, pid=execs.pid)


def test_counters_of_a_process_that_keeps_the_lock_of_its_events_are_given_up_and_others_are_counted(
    holder: Holder,
):
    """perf_event_open(2), read(2) and close(2) wait for that lock, and no kill ends it."""
    events = {"task_clock": (SOFTWARE, TASK_CLOCK)}
    with (
        child_guest(2) as other,
        contextlib.closing(PerfCounters([holder.pid], events, pid=holder.pid)) as evil,
    ):
        good = PerfCounters([other.guest.pid], events, pid=other.guest.pid)
        assert evil.counts() == good.counts() == {"task_clock": 0.0}
        holder.tell(b"p")
        with within(PATIENCE_S), pytest.raises(HeldError):
            evil.counts()
        # Another guest has a process of its own.
        assert good.counts() == {"task_clock": 0.0}
        with within(PATIENCE_S), pytest.raises(HeldError):
            PerfCounters([holder.pid], events, pid=holder.pid)
        with within(PATIENCE_S):
            evil.close()
            good.close()
            counting.close()


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_a_guest_that_lets_go_of_its_events_waits_for_no_other_that_does_not(program: Path, is_first: bool):
    """Both hold up what counts them, and one is given up: its process ends without the other's events."""
    events = {"task_clock": (SOFTWARE, TASK_CLOCK)}
    with run_holder([program]) as evil, run_holder([program]) as better:
        counters = {
            one.pid: PerfCounters([one.pid], events, pid=one.pid)
            for one in ((better, evil) if is_first else (evil, better))
        }
        for one in (evil, better):
            one.tell(b"p")
        with pytest.raises(HeldError):
            counters[better.pid].counts()
        assert held.holds(better.pid)
        better.let_go()
        until = time.monotonic() + PATIENCE_S
        while held.holds(better.pid) and time.monotonic() < until:
            time.sleep(0.05)
        assert not held.holds(better.pid)
        assert [counters[better.pid].counts()["task_clock"] for _ in range(2)] == [None, 0.0]
        with pytest.raises(HeldError):
            counters[evil.pid].counts()


def test_a_process_that_counts_and_cannot_end_is_named_by_who_holds_it_up(holder: Holder):
    """Whoever was asked last is nobody's reason: the next agent would leave that guest alone."""
    events = {"task_clock": (SOFTWARE, TASK_CLOCK)}
    with child_guest(2) as other:
        for pid in (holder.pid, other.guest.pid):
            PerfCounters([pid], events, pid=pid)
        evil, good = (process._process for process in counting._PROCESSES.values())
        holder.tell(b"p")
        counting.close()
        assert Path(f"/proc/{evil.pid}/comm").read_text() == f"{NAME}{holder.pid}\n"
        assert good.wait(PATIENCE_S) == 0


def test_one_that_counts_and_was_killed_with_all_of_its_agent_is_known_to_the_next_one(holder: Holder):
    """It does not wait until it ends: its exit closes the events, when it has no program any more."""
    script = (
        "from vmplace import held, left_behind\n"
        "left_behind.note_left_behind()\n"
        f"print(held.holds({holder.pid}), held.holds({os.getpid()}))\n"
    )
    PerfCounters([holder.pid], {"task_clock": (SOFTWARE, TASK_CLOCK)}, pid=holder.pid)
    (process,) = (process._process for process in counting._PROCESSES.values())
    holder.tell(b"p")
    process.kill()
    until, exe = time.monotonic() + 60, Path(f"/proc/{process.pid}/exe")
    while exe.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert process.poll() is None
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
