"""Undo of ties of which CPUs are offline meanwhile.

No CPU of this machine is taken offline: CPU 1000 stands for one, which sched_setaffinity(2) takes and
sched_getaffinity(2) never tells, as of one that is offline.  Threads, kernel and sysfs are real.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.actuation.child_guest import Child, child_guest
from tests.unit.actuation.fake_kernel import PAGE, FakeKernel
from vmplace.actuation.affinity import KernelCpus, read_thread_start
from vmplace.actuation.identity import read_identity
from vmplace.actuation.journal import Journal, Pin
from vmplace.actuation.page_runs import encode_pages
from vmplace.actuation.pinner import Pinner
from vmplace.actuation.undo import undo
from vmplace.agent.undo_lines import undo_lines

AWAY = 1000
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two CPUs")


@pytest.fixture
def child() -> Iterator[Child]:
    with child_guest(8) as one:
        yield one


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal") as opened:
        yield opened


def tied(journal: Journal, child: Child, before: tuple[int, ...], to: tuple[int, ...] | None) -> int:
    """Journal a tie of the child's vCPU thread, and return its id."""
    vcpu = child.guest.vcpus[0]
    pin = Pin(0, vcpu.tid, read_thread_start(child.guest.pid, vcpu.tid), before, to)
    journal.record_affinities(read_identity(child.guest), [pin], by_libvirt=False)
    return vcpu.tid


def test_a_tie_of_which_a_cpu_went_is_still_vmplaces(journal: Journal, child: Child):
    tid = tied(journal, child, (0, 1), (0, AWAY))
    os.sched_setaffinity(tid, {0})
    assert undo(journal).guests[0].vcpus == 1
    assert os.sched_getaffinity(tid) == {0, 1}


def test_a_tie_of_which_a_cpu_went_leads_past_the_loosening_to_what_was_before(
    journal: Journal, child: Child
):
    tid = tied(journal, child, (0, 1), (0, AWAY))
    os.sched_setaffinity(tid, {0})
    assert Pinner(journal).pin(child.guest, child.guest.vcpus[0], {0, 1})
    journal.compact()
    # As if it were tied once more: what is online of the first tie is not what it had by itself.
    Pinner(journal).pin(child.guest, child.guest.vcpus[0], {1})
    assert undo(journal).guests[0].vcpus == 1
    assert os.sched_getaffinity(tid) == {0, 1}


def test_a_tie_that_the_kernel_dropped_before_the_next_one_leads_to_what_was_before(
    journal: Journal, child: Child
):
    tid = tied(journal, child, (0,), (AWAY,))
    os.sched_setaffinity(tid, {0, 1})
    Pinner(journal).pin(child.guest, child.guest.vcpus[0], {1})
    undo(journal)
    assert os.sched_getaffinity(tid) == {0}


def test_a_cpu_that_somebody_else_took_away_is_not_one_that_went(journal: Journal, child: Child):
    tid = tied(journal, child, (1,), (0, 1))
    os.sched_setaffinity(tid, {0})
    Pinner(journal).pin(child.guest, child.guest.vcpus[0], {1})
    undo(journal)
    assert os.sched_getaffinity(tid) == {0}


def test_a_tie_that_the_kernel_dropped_is_nobody_elses(journal: Journal, child: Child):
    """As of select_fallback_rq: the thread may run anywhere."""
    tid = tied(journal, child, (0,), (AWAY,))
    os.sched_setaffinity(tid, {0, 1})
    assert undo(journal).guests[0].vcpus == 1
    assert os.sched_getaffinity(tid) == {0}


def with_an_offline_cpu(root: Path, pid: int, tid: int) -> tuple[Path, Path]:
    """Return a /proc and a /sys of a machine whose CPU 1000 went, which the thread was allowed to use.

    proc_pid_status(5) has all CPUs that a thread is allowed, and some that no machine of that kernel has.
    """
    proc, sysfs = root / "proc", root / "sys/devices/system/cpu"
    thread = proc / f"{pid}/task/{tid}"
    thread.mkdir(parents=True)
    (proc / "sys").symlink_to("/proc/sys")
    (proc / f"{pid}/stat").symlink_to(f"/proc/{pid}/stat")
    for name in ("stat", "cgroup"):
        (thread / name).symlink_to(f"/proc/{pid}/task/{tid}/{name}")
    (thread / "status").write_text(f"Name:\tCPU 0/KVM\nCpus_allowed_list:\t0-1,{AWAY},4000\n")
    sysfs.mkdir(parents=True)
    (sysfs / "present").write_text(f"0-1,{AWAY}\n")
    (sysfs / "online").write_text("0-1\n")
    return proc, root / "sys"


def test_a_cpu_that_was_offline_when_the_vcpu_was_tied_is_given_back_too(
    journal: Journal, child: Child, tmp_path: Path
):
    class Kernel(KernelCpus):
        asked: set[int]

        def set_cpus(self, tid: int, cpus: Iterable[int]) -> None:
            self.asked = set(cpus)
            super().set_cpus(tid, self.asked)

    vcpu, kernel = child.guest.vcpus[0], Kernel()
    proc, sysfs = with_an_offline_cpu(tmp_path / "host", child.guest.pid, vcpu.tid)
    assert Pinner(journal, proc=proc, sysfs=sysfs).pin(child.guest, vcpu, {0})
    assert os.sched_getaffinity(vcpu.tid) == {0}
    (undone,) = undo(journal, threads=kernel, sysfs=sysfs).guests
    assert (undone.vcpus, undone.offline_cpus, kernel.asked) == (1, (AWAY,), {0, 1, AWAY})
    assert os.sched_getaffinity(vcpu.tid) == {0, 1}


def test_what_is_online_of_a_threads_cpus_is_given_back_and_the_rest_reported(journal: Journal, child: Child):
    tid = tied(journal, child, (0, AWAY), (1,))
    os.sched_setaffinity(tid, {1})
    result = undo(journal)
    assert os.sched_getaffinity(tid) == {0} and result.is_complete
    assert "1 vCPUs given their CPUs back without CPUs 1000, which are offline" in undo_lines(result)[0]


@pytest.mark.parametrize(
    ("before", "reported"),
    [((AWAY,), r"its CPUs \[1000\] are offline: undo again"), ((1 << 40,), "vCPU 0: ")],
)
def test_a_thread_that_cannot_have_its_cpus_holds_up_no_page(
    journal: Journal, child: Child, before: tuple[int, ...], reported: str
):
    tid = tied(journal, child, before, None)
    kernel = FakeKernel({child.hva + i * PAGE: 0 for i in range(8)})
    homes = np.array([child.hva + i * PAGE for i in range(8)], np.uint64)
    ones = np.ones(8, np.int32)
    journal.record_pages(read_identity(child.guest), encode_pages(homes, ones, np.ones(8, np.int16)))
    result = undo(journal, kernel=kernel)
    assert set(kernel.nid_of.values()) == {1}
    assert len(result.failures) == 1 and re.search(reported, result.failures[0])
    # Not forgotten: once they are back, so is the thread's tie.
    (left,) = journal.contents().guests.values()
    assert left.affinities[tid].cpus == before and not left.pages.total_pages
