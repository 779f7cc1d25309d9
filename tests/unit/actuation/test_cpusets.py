"""A thread's cpuset, of real control groups where this machine has them, and what undo makes of it."""

import os
import threading
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pytest

from tests.unit.actuation.child_guest import Child, child_guest
from vmplace.actuation.affinity import read_thread_start
from vmplace.actuation.cpusets import read_cpuset
from vmplace.actuation.identity import read_identity
from vmplace.actuation.journal_records import AffinityRecord, GuestId
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


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two CPUs")
@pytest.mark.parametrize(("cpuset_cpus", "is_ours"), [("0-1", True), ("0-7", False)])
def test_a_pin_that_a_cpuset_narrowed_is_vmplaces(
    tmp_path: Path, child: Child, cpuset_cpus: str, is_ours: bool
):
    """Nobody may have noted what the thread got: the agent was killed just after it pinned it."""
    tid, pid = child.guest.vcpus[0].tid, child.guest.pid
    group = next(
        line.split(":", 2)[2]
        for line in Path(f"/proc/{tid}/cgroup").read_text().splitlines()
        if "0::" in line
    )
    folder = tmp_path / "fs/cgroup" / group.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "cpuset.cpus.effective").write_text(cpuset_cpus)
    online = tmp_path / "devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0-7")
    os.sched_setaffinity(tid, {1})
    record = AffinityRecord(
        GuestId(*astuple(read_identity(child.guest))),
        0,
        tid,
        read_thread_start(pid, tid),
        (0, 1),
        by_libvirt=False,
        set_to=(1, 5),
    )
    undoing = VcpusUndoing(sysfs=tmp_path)
    failures: list[str] = []
    assert undoing.restore([record], failures) == [] and not failures
    assert os.sched_getaffinity(tid) == ({0, 1} if is_ours else {1})
    assert undoing.counts["others_vcpus"] == (not is_ours)
