"""Any KVM process is found, with vCPUs, RAM, and a reason where its memory must stay."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.unit.nobody import holds_for_nobody, needs_nobody
from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.topology.guest import GuestTopology, Movability
from vmplace.topology.guest_finder import GuestFinder, GuestScan
from vmplace.topology.guest_names import with_unique_names
from vmplace.topology.guest_reader import check_identity
from vmplace.topology.guests_kvm import KvmProcesses, is_guest, telling
from vmplace.topology.procfs import parse_start_time, read_comm, read_start
from vmplace.topology.vcpus import find_vcpu_tids

CHILD = Path(__file__).with_name("kvm_child.py")
RAM_BYTES = 96 << 20


@dataclass(frozen=True)
class Child:
    """What the guest says of itself."""

    process: subprocess.Popen[str]
    hva: int
    tids: list[int]


@pytest.fixture
def start_guest() -> Iterator[Callable[..., Child]]:
    started: list[subprocess.Popen[str]] = []

    def start(*args: str) -> Child:
        process = subprocess.Popen(
            [sys.executable, str(CHILD), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        numbers = [int(field) for field in process.stdout.readline().split()]
        if not numbers:
            assert process.stderr is not None
            pytest.skip(f"no such guest here: {process.stderr.read().splitlines()[-1]}")
        return Child(process, numbers[0], numbers[1:])

    yield start
    for process in started:
        process.kill()
        process.communicate()


def guest_of(child: Child, scan: GuestScan) -> GuestTopology:
    return next(guest for guest in scan.guests if guest.pid == child.process.pid)


@pytest.mark.kvm
def test_vcpus_and_ram_of_a_guest_that_names_nothing(start_guest: Callable[..., Child]):
    child = start_guest("private", "2")
    guest = guest_of(child, GuestFinder().find())
    assert [vcpu.tid for vcpu in guest.vcpus] == child.tids
    assert set(guest.vcpus[0].cpus) == os.sched_getaffinity(child.tids[0])
    assert [(r.hva, r.size_bytes, r.movability) for r in guest.ram] == [
        (child.hva, RAM_BYTES, Movability.MOVABLE)
    ]
    assert (guest.origin, guest.ram[0].base_gfn) == ("kvm", None)


@pytest.mark.kvm
def test_vcpus_by_the_names_that_qemu_gives_its_threads(start_guest: Callable[..., Child]):
    child = start_guest("private", "2", "CPU {}/KVM")
    guest = guest_of(child, GuestFinder().find())
    assert {vcpu.vcpu_id: vcpu.tid for vcpu in guest.vcpus} == dict(enumerate(child.tids))


@pytest.mark.kvm
def test_a_busy_vcpu_is_known_by_its_guest_time(start_guest: Callable[..., Child]):
    child = start_guest("busy", "2")
    finder = GuestFinder(debugfs=Path("/nonexistent"))
    deadline = time.monotonic() + 60
    while not (guest := guest_of(child, finder.find())).vcpus and time.monotonic() < deadline:
        stat = Path(f"/proc/{child.process.pid}/task/{child.tids[0]}/stat").read_text()
        ticks = [int(field) for field in stat.rpartition(")")[2].split()[1:]]
        # utime and guest_time, proc_pid_stat(5): a second of one, and nothing of the other.
        if ticks[10] + ticks[11] > 100 and not ticks[39]:
            pytest.skip("this KVM accounts no guest time")
        time.sleep(0.1)
    assert [vcpu.tid for vcpu in guest.vcpus] == child.tids


@pytest.mark.kvm
@pytest.mark.parametrize(
    ("memory", "movability"),
    [("mlocked", Movability.PINNED), ("memfd", Movability.SHARED), ("hugetlb", Movability.HUGETLB)],
)
def test_memory_that_must_stay(start_guest: Callable[..., Child], memory: str, movability: Movability):
    child = start_guest(memory, "1")
    ram = guest_of(child, GuestFinder().find()).ram
    assert [(r.hva, r.movability) for r in ram] == [(child.hva, movability)]
    assert ram[0].reason


@pytest.mark.kvm
def test_a_guest_that_ends_is_gone(start_guest: Callable[..., Child]):
    finder = GuestFinder()
    child = start_guest("private", "1")
    guest = guest_of(child, finder.find())
    check_identity(guest)
    child.process.kill()
    child.process.wait()
    assert guest.pid not in {other.pid for other in finder.find().guests}
    with pytest.raises(GuestGoneError):
        check_identity(guest)


def test_a_pid_that_was_used_again_is_gone():
    mine = GuestTopology("a", os.getpid(), 1, "kvm", (), ())
    with pytest.raises(GuestGoneError, match="another process"):
        check_identity(mine)


@pytest.mark.kvm
def test_page_tables_are_walked_once_while_mappings_stay(
    start_guest: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
):
    child = start_guest("private", "1")
    finder = GuestFinder()
    before = guest_of(child, finder.find())
    monkeypatch.setattr("vmplace.topology.guest_reader.read_smaps", None)
    assert guest_of(child, finder.find()).ram == before.ram


@pytest.mark.kvm
@needs_nobody
def test_a_guest_that_may_not_be_read_is_skipped_with_the_reason(start_guest: Callable[..., Child]):
    child = start_guest("private", "1")

    def skipped() -> bool:
        scan = GuestFinder().find()
        reasons = [skip.reason for skip in scan.skipped if skip.pid == child.process.pid]
        return not scan.guests and "Permission denied" in reasons[0]

    assert holds_for_nobody(skipped)


def test_processes_that_vanish_while_they_are_read(tmp_path: Path):
    (tmp_path / "11").mkdir()
    (tmp_path / "12/fd").mkdir(parents=True)
    (tmp_path / "12/stat").write_text("12 (a) b)) S " + "0 " * 18 + "777 0\n")
    assert KvmProcesses(tmp_path).find() == ([], [])


def test_a_command_with_brackets_does_not_shift_the_start_time():
    assert parse_start_time("12 (a) b)) S " + "0 " * 18 + "777 0\n") == 777


def test_qemu_being_probed_is_no_guest():
    assert not is_guest({4: "anon_inode:kvm-vm"})
    assert is_guest({4: "anon_inode:kvm-vm", 5: "anon_inode:kvm-vcpu:0"})


def test_debugfs_names_the_vcpus_of_this_process_only(tmp_path: Path):
    # Two VMMs whose VM bears descriptor 9.
    for creator, tids in ((100, (101, 102)), (200, (201, 202))):
        for vcpu_id, tid in enumerate(tids):
            path = tmp_path / f"kvm/{creator}-9/vcpu{vcpu_id}"
            path.mkdir(parents=True)
            (path / "pid").write_text(f"{tid}\n")
    descriptors = {9: "anon_inode:kvm-vm", 10: "anon_inode:kvm-vcpu:0", 11: "anon_inode:kvm-vcpu:1"}
    threads = dict.fromkeys((200, 201, 202), "vmm")
    assert find_vcpu_tids(200, descriptors, threads, tmp_path, tmp_path) == {0: 201, 1: 202}


def test_half_known_vcpus_are_unknown(tmp_path: Path):
    (tmp_path / "kvm/200-9/vcpu0").mkdir(parents=True)
    (tmp_path / "kvm/200-9/vcpu0/pid").write_text("201\n")
    descriptors = {9: "anon_inode:kvm-vm", 10: "anon_inode:kvm-vcpu:0", 11: "anon_inode:kvm-vcpu:1"}
    assert find_vcpu_tids(200, descriptors, {200: "", 201: ""}, tmp_path, tmp_path) == {}


def test_idle_processes_are_looked_at_ever_more_seldom(tmp_path: Path):
    (tmp_path / "12/fd").mkdir(parents=True)
    (tmp_path / "12/stat").write_text("12 (vmm) S " + "0 " * 18 + "777 0\n")
    now = 0.0
    processes = KvmProcesses(tmp_path, lambda: now)
    processes.find()
    for fd, target in enumerate(("kvm-vm", "kvm-vcpu:0")):
        (tmp_path / f"12/fd/{fd}").symlink_to(f"anon_inode:{target}")
    assert processes.find()[0] == []
    now = 1.0
    assert [process.pid for process in processes.find()[0]] == [12]


def test_threads_of_the_kernel_are_looked_at_once_a_minute(tmp_path: Path):
    # Flags as Linux 6.18 shows them of kthreadd, PF_KTHREAD among them: proc_pid_stat(5), field 9.
    (tmp_path / "2").mkdir()
    (tmp_path / "2/stat").write_text("2 (kthreadd) S 0 0 0 0 -1 2129984 " + "0 " * 12 + "777 0\n")
    now = 0.0
    processes = KvmProcesses(tmp_path, lambda: now)
    # It has no folder of descriptors that could be read: no note says so.
    assert processes.find() == ([], [])
    (tmp_path / "2/fd").mkdir()
    for fd, target in enumerate(("kvm-vm", "kvm-vcpu:0")):
        (tmp_path / f"2/fd/{fd}").symlink_to(f"anon_inode:{target}")
    (tmp_path / "2/stat").write_text("2 (helper) S 0 0 0 0 -1 4194304 " + "0 " * 12 + "777 0\n")
    now = 59.0
    assert processes.find()[0] == []
    now = 60.0
    assert [process.pid for process in processes.find()[0]] == [2]


def test_a_thread_of_this_kernel_is_one():
    if read_comm(2) != "kthreadd":
        pytest.skip("pid 2 is no thread of the kernel here")
    assert read_start(2)[1] and not read_start(os.getpid())[1]


def test_equal_names_stay_apart():
    bare = GuestTopology("db", 7, 1, "kvm", (), ())
    named = replace(bare, pid=8, origin="libvirt")
    assert [guest.name for guest in with_unique_names([bare, named], {})] == ["db-7", "db"]


def test_a_name_stays_with_who_had_it_first():
    first, second = GuestTopology("db", 9, 1, "kvm", (), ()), GuestTopology("db", 7, 2, "kvm", (), ())
    named = with_unique_names([second, first], {})
    assert [guest.name for guest in named] == ["db-7", "db"]
    known = {guest.identity: guest.name for guest in named}
    # The older one says that it is another now, an older newcomer says that it is "db-7".
    posing = [replace(first, name="web"), replace(second), GuestTopology("db-7", 5, 0, "kvm", (), ())]
    assert [guest.name for guest in with_unique_names(posing, known)] == ["db", "db-7", "db-7-5"]


def test_of_a_guests_files_only_those_are_kept_that_tell_something():
    guests = {3: "anon_inode:kvm-vm", 4: "anon_inode:kvm-vcpu:0"}
    others = {fd: f"/tmp/{'x' * 200}{fd}" for fd in range(10, 60_000)}
    devices = {fd: f"/dev/vfio/{fd}" for fd in range(60_000, 60_100)}
    kept = telling({**others, **devices, 60_100: "anon_inode:[kvm-gmem]", **guests})
    assert kept.items() >= guests.items()
    assert "anon_inode:[kvm-gmem]" in kept.values() and "/dev/vfio/60000" in kept.values()
    assert len(kept) < 10


def test_a_guest_with_more_vcpu_files_than_a_vmm_has_is_left_alone():
    with pytest.raises(UnsupportedHostError, match="files of KVM"):
        telling(dict.fromkeys(range(20_000), "anon_inode:kvm-vcpu:0"))
