"""Moves between real nodes, seen by the kernel's own numa_maps and by the process whose memory moves."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.machine import LabHost, boot_host

pytestmark = pytest.mark.lab
SLOW_HUGE = pytest.param("huge", marks=pytest.mark.slow)

INSIDE = "/root/actuation_inside.py"
PAGES_PER_MIB = 256


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    with boot_host("n4-full", files={INSIDE: Path(__file__).with_name("actuation_inside.py")}) as booted:
        yield booted


class LabChild:
    """A process inside with declared memory."""

    def __init__(self, host: LabHost, name: str, *, mib: int = 16, kind: str = "small", nids: str = "-m 0"):
        self.host, self.name, self.kind = host, name, kind
        host.run(f"rm -f /run/{name}.*")
        host.spawn(f"exec numactl {nids} python3 {INSIDE} child {name} {mib} {kind}")
        reported = json.loads(self._file("json"))
        self.pid, self.hva = reported["pid"], reported["hva"]

    def _file(self, suffix: str) -> str:
        wait = f"for i in $(seq 300); do test -e /run/{self.name}.{suffix} && break; sleep 0.2; done"
        return self.host.run(f"{wait}; cat /run/{self.name}.{suffix}", timeout=90).stdout

    def numa_maps(self) -> dict[int, int]:
        """Return the pages per node of the process's largest mapping, as the kernel counts them."""
        text = self.host.run(f"cat /proc/{self.pid}/numa_maps").stdout
        maps = [dict(re.findall(r" N(\d+)=(\d+)", line)) for line in text.splitlines()]
        largest = max(maps, key=lambda pages: sum(map(int, pages.values())))
        return {int(nid): int(count) for nid, count in largest.items()}

    def nid_of_each_page(self) -> str:
        """Return the node of every page, by move_pages(2) asked through numpy and libnuma's number."""
        return self.host.run(["python3", "-c", EACH_PAGE, str(self.pid), str(self.hva), "4096"]).stdout

    def huge_kib(self) -> int:
        text = self.host.run(f"cat /proc/{self.pid}/smaps_rollup").stdout
        return int(re.findall(r"AnonHugePages: +(\d+)", text)[0])

    def sums(self) -> list[int]:
        """End the process and return all different sums of its memory that it saw."""
        self.host.run(f"touch /run/{self.name}.over")
        return list(json.loads(self._file("sums")))

    def kill(self) -> None:
        self.host.run(f"kill -9 {self.pid}")


# A second opinion without vmplace: system call 279 is move_pages on x86-64.
EACH_PAGE = """
import ctypes, sys, numpy as np
pid, hva, count = map(int, sys.argv[1:])
hvas, status = np.arange(count, dtype=np.uint64) * 4096 + hva, np.zeros(count, np.int32)
ctypes.CDLL(None).syscall(279, pid, ctypes.c_ulong(count), ctypes.c_void_p(hvas.ctypes.data), None,
                          ctypes.c_void_p(status.ctypes.data), 0)
print("".join(chr(48 + s) if s >= 0 else "?" for s in status.tolist()))
"""

MOVE_PAGES = """
import ctypes, sys, numpy as np
pid, hva, count, nid = map(int, sys.argv[1:])
hvas, status = np.arange(count, dtype=np.uint64) * 4096 + hva, np.zeros(count, np.int32)
nids = np.full(count, nid, np.int32)
for at in range(count):
    ctypes.CDLL(None).syscall(279, pid, ctypes.c_ulong(1), ctypes.c_void_p(hvas.ctypes.data + 8 * at),
                              ctypes.c_void_p(nids.ctypes.data), ctypes.c_void_p(status.ctypes.data), 2)
"""


def apply(host: LabHost, journal: str, nids: str, *children: LabChild) -> dict[str, Any]:
    names = [child.name for child in children]
    ran = host.run(["python3", INSIDE, "apply", journal, nids, children[0].kind, "1000", *names], timeout=200)
    return dict(json.loads(ran.stdout))


def await_first_move(host: LabHost, journal: str) -> None:
    """Wait until something is journaled; the head of the file alone is 8 bytes."""
    size = f"$(stat -c %s {journal} 2>/dev/null || echo 0)"
    host.run(f"until test {size} -gt 8; do sleep 0.05; done", timeout=90)


def undo(host: LabHost, journal: str) -> dict[str, Any]:
    return dict(json.loads(host.run(["python3", INSIDE, "undo", journal], timeout=200).stdout))


@pytest.mark.parametrize("kind", ["small", "huge"])
def test_memory_moves_whole_and_unchanged_while_it_is_read(host: LabHost, kind: str):
    child = LabChild(host, f"whole-{kind}", kind=kind)
    assert child.numa_maps() == {0: 4096}
    huge_before = child.huge_kib()
    outcome = apply(host, f"/root/{kind}.journal", "2", child)["outcomes"][0]
    print(outcome)
    assert child.numa_maps() == {2: 4096}
    assert outcome["moved"] == 4096
    assert child.huge_kib() == huge_before
    assert len(child.sums()) == 1


@pytest.mark.parametrize("kind", ["small", SLOW_HUGE])
def test_undo_restores_every_page_of_a_scattered_process(host: LabHost, kind: str):
    child, journal = LabChild(host, f"back-{kind}", kind=kind, nids="-i 0,1,3"), f"/root/b-{kind}.journal"
    before = child.nid_of_each_page()
    assert set(before.strip()) == set("013")
    apply(host, journal, "2", child)
    apply(host, journal, "3,2,1,0", child)
    assert child.nid_of_each_page() != before
    result = undo(host, journal)
    print(result)
    assert child.nid_of_each_page() == before
    assert not result["failures"] and not result["guests"][0]["stuck"]
    assert len(child.sums()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["small", "huge"])
def test_undo_leaves_pages_that_somebody_else_moved_on(host: LabHost, kind: str):
    child, journal = LabChild(host, f"on-{kind}", kind=kind, nids="-i 0,1"), f"/root/o-{kind}.journal"
    before = child.nid_of_each_page().strip()
    apply(host, journal, "2", child)
    # The administrator.
    host.run(["python3", "-c", MOVE_PAGES, str(child.pid), str(child.hva), "2048", "3"])
    assert child.nid_of_each_page().strip() == "3" * 2048 + "2" * 2048
    result = undo(host, journal)
    print(result)
    assert child.nid_of_each_page().strip() == "3" * 2048 + before[2048:]
    assert result["guests"][0]["others_pages"] == 2048
    assert len(child.sums()) == 1


@pytest.mark.parametrize("kind", ["small", SLOW_HUGE])
def test_kvm_moves_the_memory_of_a_vm_and_undo_brings_it_back(host: LabHost, kind: str):
    child, journal = LabChild(host, f"vm-{kind}", kind=kind, nids="-i 0,1,3"), f"/root/vm-{kind}.journal"
    assert host.run(["python3", INSIDE, "kernel", child.name]).stdout == "GfnKernel\n"
    before, huge_before = child.nid_of_each_page(), child.huge_kib()
    outcome = apply(host, journal, "2", child)["outcomes"][0]
    print(outcome)
    assert child.numa_maps() == {2: 4096}
    assert outcome["moved"] == 4096
    assert child.huge_kib() == huge_before
    result = undo(host, journal)
    assert child.nid_of_each_page() == before
    assert not result["failures"] and not result["guests"][0]["stuck"]
    assert len(child.sums()) == 1


def test_a_process_without_a_vm_is_moved_by_the_system_call(host: LabHost):
    child = LabChild(host, "no-vm", mib=4)
    assert host.run(["python3", INSIDE, "kernel", child.name]).stdout == "NativeKernel\n"
    child.kill()


@pytest.mark.parametrize(
    "delay_s", [0.8, *(pytest.param(other, marks=pytest.mark.slow) for other in (0.3, 1.5))]
)
def test_a_mover_killed_9_is_undone_by_the_next(host: LabHost, delay_s: float):
    child = LabChild(host, "killed", nids="-i 0,1")
    journal = f"/root/k{delay_s}.journal"
    before = child.nid_of_each_page()
    mover = host.spawn(["python3", INSIDE, "apply", journal, "3,2", "small", "4", child.name])
    await_first_move(host, journal)
    time.sleep(delay_s)
    mover.kill("KILL")
    mover.wait(timeout=30)
    killed_at = child.nid_of_each_page()
    assert killed_at != before
    assert set(killed_at) & set("01"), "killed too late to be in the middle"
    result = undo(host, journal)
    assert child.nid_of_each_page() == before
    assert not result["failures"]
    assert len(child.sums()) == 1


@pytest.mark.slow
def test_a_guest_killed_in_the_middle_leaves_the_other_its_moves(host: LabHost):
    victim, other = LabChild(host, "victim"), LabChild(host, "other")
    mover = host.spawn(["python3", INSIDE, "apply", "/root/v.journal", "1", "small", "4", "victim", "other"])
    await_first_move(host, "/root/v.journal")
    victim.kill()
    assert mover.wait(timeout=200) == 0, mover.output()
    result = json.loads(mover.output())
    print(result)
    assert result["failures"] == ["guest victim: ended while its pages were moved"]
    assert other.numa_maps() == {1: 4096}
    assert len(other.sums()) == 1


def test_a_node_outside_the_cpuset_is_refused_with_the_cure(host: LabHost):
    child = LabChild(host, "fenced", mib=8)
    group = "/sys/fs/cgroup/fenced"
    host.run(
        f"echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control; mkdir {group};"
        f" echo 0-1 > {group}/cpuset.mems; echo {child.pid} > {group}/cgroup.procs"
    )
    result = apply(host, "/root/f.journal", "3", child)
    assert result["outcomes"][0]["refused"] == {"EACCES": 2048}
    assert "cpuset.mems" in result["failures"][0]
    assert apply(host, "/root/f.journal", "1", child)["outcomes"][0]["moved"] == 2048
    assert len(child.sums()) == 1
