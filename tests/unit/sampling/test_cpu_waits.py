"""How long vCPU threads wait for a CPU, by the kernel's own account of real threads."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import guest
from vmplace.sampling.cpu_waits import MOST_THREADS, QUOTA_S, CpuWaits
from vmplace.thread_waits import ran_and_waited_ns
from vmplace.topology.guest import GuestTopology, Vcpu


def of_threads(tids: list[int], pid: int, cpus: tuple[int, ...] = (0, 1)) -> GuestTopology:
    return replace(guest("g"), pid=pid, vcpus=tuple(Vcpu(i, tid, cpus) for i, tid in enumerate(tids)))


def written(proc: Path, tid: int, text: str) -> None:
    folder = proc / "7" / "task" / str(tid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(text)


@pytest.fixture
def cpu() -> Iterator[int]:
    """A CPU on which a busy process wants to run all the time, besides this one's children."""
    cpu = min(os.sched_getaffinity(0))
    other = busy_child(cpu)
    yield cpu
    ended(other)


def busy_child(cpu: int) -> int:
    if pid := os.fork():
        return pid
    try:
        signal.alarm(60)
        os.sched_setaffinity(0, {cpu})
        while True:
            pass
    finally:
        os._exit(1)


def ended(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits")
def test_of_two_processes_that_want_one_cpu_each_waits_as_long_as_it_runs(cpu: int) -> None:
    pid = busy_child(cpu)
    waits, one = CpuWaits(sysfs=Path("/nowhere")), of_threads([pid], pid)
    try:
        deadline = time.monotonic() + 30
        while not ran_and_waited_ns(Path(f"/proc/{pid}/schedstat")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert waits.ratio(one) is None
        time.sleep(1.0)
        ratio = waits.ratio(one)
        # Others may want the CPU, too.
        assert ratio is not None and ratio > 0.5
    finally:
        ended(pid)
    assert waits.ratio(one) is None


def test_waits_are_since_the_last_call_and_of_threads_that_were_there_then(
    tmp_path: Path,
) -> None:
    waits, both = CpuWaits(tmp_path), of_threads([1, 2], 7)
    written(tmp_path, 1, "5000000 1000000 3\n")
    assert waits.ratio(both) is None
    written(tmp_path, 1, "15000000 3000000 9\n")
    written(tmp_path, 2, "90000000 90000000 9\n")
    assert waits.ratio(both) == pytest.approx(0.2)
    written(tmp_path, 2, "120000000 90000000 9\n")
    written(tmp_path, 1, "25000000 13000000 9\n")
    assert waits.ratio(both) == pytest.approx(0.25)
    waits.forget(both)
    assert waits.ratio(both) is None


@pytest.mark.parametrize("text", ["0 0 0\n", "", "12 x 0\n", "7\n"])
def test_a_kernel_that_does_not_count_tells_nothing(tmp_path: Path, text: str) -> None:
    waits, one = CpuWaits(tmp_path), of_threads([1], 7)
    written(tmp_path, 1, text)
    assert [waits.ratio(one), waits.ratio(one)] == [None, None]


def test_waits_of_a_guest_that_hardly_runs_count_little(tmp_path: Path) -> None:
    now_s = [0.0]
    waits, one = CpuWaits(tmp_path, clock=lambda: now_s[0]), of_threads([1], 7)
    for step, known in ((0, None), (1, 0.02), (2, 0.02)):  # 2 ms of a second
        now_s[0] = float(step)
        written(tmp_path, 1, f"{5 + 2_000_000 * step} {5 + 2_000_000 * step} 1\n")
        assert waits.ratio(one) == (known and pytest.approx(known))


def test_a_guest_of_many_vcpus_costs_a_bounded_number_of_reads(tmp_path: Path) -> None:
    waits, wide = CpuWaits(tmp_path), of_threads([*range(1, 251)], 7)
    for tid in range(1, 251):
        written(tmp_path, tid, "1 1 1\n")
    assert waits.ratio(wide) is None
    asked = sorted(waits._last[wide.identity][1])
    assert len(asked) == MOST_THREADS and {b - a for a, b in pairwise(asked)} <= {15, 16}


def test_vcpus_with_a_cpu_of_their_own_are_not_asked(tmp_path: Path) -> None:
    waits, pinned = CpuWaits(tmp_path), of_threads([1], 7, cpus=(3,))
    for ran in (10**7, 10**8):
        written(tmp_path, 1, f"{ran} {ran} 1\n")
        assert waits.ratio(pinned) is None


@pytest.mark.parametrize(
    ("groups", "file", "quota", "none"),
    [
        ("0::/machine.slice/g/vcpu0", "machine.slice/g/cpu.max", "200000 100000", "max 100000"),
        ("4:cpu,cpuacct:/machine/g/vcpu0", "cpu/machine/g/vcpu0/cpu.cfs_quota_us", "50000", "-1"),
    ],
)
def test_what_a_guest_with_a_quota_waits_is_not_known(
    tmp_path: Path, groups: str, file: str, quota: str, none: str
) -> None:
    now_s = [0.0]
    waits, one = CpuWaits(tmp_path, tmp_path / "sys", lambda: now_s[0]), of_threads([1], 7)
    path = tmp_path / "sys/fs/cgroup" / file
    path.parent.mkdir(parents=True)
    ran = 0
    # The last one is set just after it was looked at.
    for text, passed_s, known in (
        (none, QUOTA_S, True),
        (quota, QUOTA_S, False),
        (none, QUOTA_S, True),
        (quota, 1, False),
    ):
        path.write_text(f"{text}\n")
        now_s[0] += passed_s
        found = []
        for _ in range(2):
            ran += 10**12
            written(tmp_path, 1, f"{ran} {ran // 10} 1\n")
            (tmp_path / "7/task/1/cgroup").write_text(f"{groups}\n")
            found.append(waits.ratio(one))
        assert (found[-1] == pytest.approx(0.1)) if known else found == [None, None]
