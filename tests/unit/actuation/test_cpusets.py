"""A thread's cpuset, of real control groups where this machine has them, and what undo makes of it."""

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.unit.actuation.child_guest import Child, child_guest
from vmplace.actuation.affinity import KernelCpus
from vmplace.actuation.cpusets import read_cpuset
from vmplace.actuation.journal import Journal
from vmplace.actuation.journal_records import AffinityRecord, GuestId
from vmplace.actuation.pinner import Pinner
from vmplace.actuation.tied_again import tied_again
from vmplace.actuation.undo import undo
from vmplace.actuation.undo_vcpus import VcpusUndoing

PROC, SYSFS = Path("/proc"), Path("/sys")
V1 = SYSFS / "fs/cgroup/cpuset"
FIRST = 1 << 22
"""The kernel gives no pid from here on (PID_MAX_LIMIT)."""


@pytest.fixture
def child() -> Iterator[Child]:
    with child_guest(8) as one:
        yield one


@pytest.fixture
def cpuset() -> Iterator[Path]:
    """A cpuset of CPU 0, of the first version, as threads of one process can be in several of these."""
    group = V1 / f"vmplace-test-{os.getpid()}"
    try:
        group.mkdir()
        for name in ("mems", "cpus"):
            (group / f"cpuset.{name}").write_text("0")
    except OSError:
        pytest.skip("needs a hierarchy of cpusets that it may change")
    yield group
    group.rmdir()


def test_the_cpuset_of_a_real_thread(cpuset: Path):
    tid, pid = threading.get_native_id(), os.getpid()
    before = read_cpuset(pid, tid, PROC, SYSFS)
    assert before is not None and os.sched_getaffinity(0) <= before
    (cpuset / "tasks").write_text(str(tid))
    try:
        assert read_cpuset(pid, tid, PROC, SYSFS) == frozenset({0}) == os.sched_getaffinity(tid)
    finally:
        (V1 / "tasks").write_text(str(tid))
        os.sched_setaffinity(tid, before)


def tree(root: Path, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write what /proc says of one thread, and files below /sys/fs/cgroup."""
    thread = root / f"proc/{FIRST}/task/{FIRST}"
    thread.mkdir(parents=True)
    (thread / "cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc", root / "sys"


@pytest.mark.parametrize(
    ("groups", "files", "cpus"),
    [
        (
            "0::/a/b\n",
            {"a/b/cpuset.cpus.effective": "0-2,5\n", "a/cpuset.cpus.effective": "7\n"},
            {0, 1, 2, 5},
        ),
        # The controller is off in the group itself.
        ("0::/a/b\n", {"a/cpuset.cpus.effective": "7\n", "cpuset.cpus.effective": "0-7\n"}, {7}),
        ("2:cpuset:/a\n0::/\n", {"cpuset/a/cpuset.effective_cpus": "3\n"}, {3}),
        ("0::/a\n", {"a/cpuset.cpus.effective": "many\n"}, None),
        ("0::/../../a\n", {"../../a/cpuset.cpus.effective": "1\n"}, None),
        ("", {}, None),
    ],
)
def test_the_nearest_cpuset_counts(tmp_path: Path, groups: str, files: dict[str, str], cpus: set[int] | None):
    proc, sysfs = tree(tmp_path / "root", groups, files)
    assert read_cpuset(FIRST, FIRST, proc, sysfs) == cpus


def test_a_thread_that_is_gone_has_none():
    assert read_cpuset(FIRST, FIRST, PROC, SYSFS) is None


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two CPUs")
def test_undo_knows_a_pin_that_a_cpuset_narrowed_from_an_agent_that_was_killed_just_then(
    tmp_path: Path, child: Child
):
    vcpu = child.guest.vcpus[0]
    sysfs = of_thread(tmp_path, vcpu.tid, "0-1")

    class Killed(KernelCpus):
        def set_cpus(self, tid: int, cpus: Iterable[int]) -> None:
            # What the kernel makes of CPUs 1 and 5 in that cpuset.
            os.sched_setaffinity(tid, {1})
            raise KilledError

    with Journal(tmp_path / "journal") as journal:
        with pytest.raises(KilledError):
            Pinner(journal, sysfs=sysfs, threads=Killed()).pin(child.guest, vcpu, {1, 5})
        (guest,) = journal.contents().guests.values()
        undoing = VcpusUndoing(sysfs=with_cpus(sysfs, "0-7"))
        failures: list[str] = []
        assert not undoing.restore(guest.affinities.values(), failures) and not failures
    assert undoing.counts["vcpus"] == 1
    assert os.sched_getaffinity(vcpu.tid) == {0, 1}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two CPUs")
def test_undo_leaves_what_an_operator_narrowed_since(tmp_path: Path, cpuset: Path, child: Child):
    """As virsh vcpupin does: the thread's cpuset, and its affinity."""
    vcpu = child.guest.vcpus[0]
    os.sched_setaffinity(vcpu.tid, {1})
    with Journal(tmp_path / "journal") as journal:
        assert Pinner(journal).pin(child.guest, vcpu, {0, 1})
        (cpuset / "tasks").write_text(str(vcpu.tid))
        os.sched_setaffinity(vcpu.tid, {0})
        try:
            assert undo(journal).guests[0].others_vcpus == 1
        finally:
            (V1 / "tasks").write_text(str(vcpu.tid))
    assert os.sched_getaffinity(vcpu.tid) == {0}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two CPUs")
@pytest.mark.parametrize(
    ("before", "tie"),
    [({0, 1}, {1}), ({0, 1}, {0}), ({0}, {1}), ({0}, {0, 1}), ({1}, {0}), ({1}, {0, 1})],
    ids=str,
)
def test_a_tie_of_which_a_cpuset_hides_a_part_is_still_vmplaces(
    tmp_path: Path, cpuset: Path, child: Child, before: set[int], tie: set[int]
):
    """As systemd's AllowedCPUs= does.  What cannot be given back as long as it does is so later."""
    vcpu = child.guest.vcpus[0]
    os.sched_setaffinity(vcpu.tid, before)
    with Journal(tmp_path / "journal") as journal:
        assert Pinner(journal).pin(child.guest, vcpu, tie)
        (cpuset / "tasks").write_text(str(vcpu.tid))
        assert os.sched_getaffinity(vcpu.tid) == {0}
        undo(journal)
        journal.compact()
        (V1 / "tasks").write_text(str(vcpu.tid))
        undo(journal)
        assert os.sched_getaffinity(vcpu.tid) == before
        assert not journal.contents().guests


@pytest.mark.parametrize(
    ("now", "usable", "before"),
    [
        # The cpuset lost CPU 0, or both; somebody else set 3; nothing is known of a cpuset.
        ((1,), "1-3", (0, 1, 2, 3)),
        ((2, 3), "2-3", (0, 1, 2, 3)),
        ((3,), "2-3", (3,)),
        ((1,), "", (1,)),
    ],
)
def test_what_a_cpuset_hides_as_a_vcpu_is_tied_again_is_not_forgotten(
    now: tuple[int, ...], usable: str, before: tuple[int, ...]
):
    guest = GuestId("db1", 1, 1, "boot")
    first = AffinityRecord(guest, 0, 2, 1, (0, 1, 2, 3), by_libvirt=False, set_to=(0, 1))
    again = AffinityRecord(guest, 0, 2, 1, now, by_libvirt=False, set_to=(2,), usable=usable)
    assert tied_again(first, again).cpus == before


def test_cpus_that_a_cpuset_does_not_leave_are_no_reason_to_pin_again(tmp_path: Path, child: Child):
    vcpu = child.guest.vcpus[0]
    os.sched_setaffinity(vcpu.tid, {0})
    sysfs = of_thread(tmp_path, vcpu.tid, "0")
    with Journal(tmp_path / "journal") as journal:
        assert not Pinner(journal, sysfs=sysfs).pin(child.guest, vcpu, {0, 5})


def with_cpus(sysfs: Path, cpus: str) -> Path:
    """Have so many CPUs online there, which this machine need not have."""
    online = sysfs / "devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text(cpus)
    return sysfs


def of_thread(root: Path, tid: int, cpus: str) -> Path:
    """Write what a real thread's cpuset has, below a /sys of its own."""
    reported = Path(f"/proc/{tid}/cgroup").read_text().splitlines()
    group = next(line.split(":", 2)[2] for line in reported if line.startswith("0::"))
    folder = root / "sys/fs/cgroup" / group.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpuset.cpus.effective").write_text(cpus)
    for line in reported:
        _, controllers, path = line.split(":", 2)
        if "cpuset" in controllers.split(","):
            first = root / "sys/fs/cgroup/cpuset" / path.lstrip("/")
            first.mkdir(parents=True, exist_ok=True)
            (first / "cpuset.effective_cpus").write_text(cpus)
    return root / "sys"
