"""A guest is who libvirt started, not who says so."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.topology.test_guests_kvm import CHILD
from vmplace import held
from vmplace.errors import GuestGoneError, UnsupportedHostError
from vmplace.held import Held
from vmplace.topology import guest_finder, guests_kvm, procfs
from vmplace.topology.description import GuestDescription
from vmplace.topology.domain_owner import is_of_domain
from vmplace.topology.guest import GuestTopology
from vmplace.topology.guest_finder import BUSY, LOOK_S, GuestFinder, GuestScan
from vmplace.topology.guest_reader import GuestReader
from vmplace.topology.guests_kvm import KvmProcess, KvmProcesses
from vmplace.topology.guests_libvirt import Libvirt, LibvirtAnswer

UUID = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0"


class Reporting(Libvirt):
    """A libvirt that runs one domain; there is no libvirtd on this machine, in the lab there is."""

    def __init__(self) -> None:
        self.domains = {UUID: GuestDescription("db1", uuid=UUID)}

    def read(self, uuids: frozenset[str] = frozenset()) -> LibvirtAnswer:
        """Tell of it."""
        return LibvirtAnswer(self.domains)


@pytest.fixture
def claim() -> Iterator[Callable[..., int]]:
    """Start real KVM guests whose command line is that of the domain."""
    started = []

    def start(*said: str) -> int:
        argv = ["qemu-system-x86_64", str(CHILD), "private", "1", "CPU {}/KVM"]
        argv += said or ["-uuid", UUID, "-name", "guest=db1"]
        process = subprocess.Popen(argv, executable=sys.executable, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout and process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def found(scan: GuestScan, *pids: int) -> dict[int, tuple[str, str]]:
    return {guest.pid: (guest.name, guest.origin) for guest in scan.guests if guest.pid in pids}


@pytest.mark.kvm
def test_a_second_process_with_the_uuid_is_reported_and_left_alone(tmp_path: Path, claim: Callable[[], int]):
    real, other = claim(), claim()
    (tmp_path / "db1.pid").write_text(f"{real}\n")
    scan = GuestFinder(Reporting(), run=tmp_path).find()
    assert found(scan, real, other) == {real: ("db1", "libvirt")}
    (reported,) = [skip.reason for skip in scan.skipped if skip.pid == other]
    assert "claims to be domain db1" in reported and "left alone" in reported


@pytest.mark.kvm
def test_who_says_that_it_is_a_domain_that_cannot_be_read_gets_none_of_its_policy(
    tmp_path: Path, claim: Callable[[], int]
):
    class Unreadable(Reporting):
        def read(self, uuids: frozenset[str] = frozenset()) -> LibvirtAnswer:
            return LibvirtAnswer(rejected={"db1": "its XML is too deep"}, names={UUID: "db1"})

    real, other = claim(), claim()
    (tmp_path / "db1.pid").write_text(f"{real}\n")
    scan = GuestFinder(Unreadable(), run=tmp_path).find()
    assert found(scan, real, other) == {real: ("db1", "kvm")}
    (reported,) = [skip.reason for skip in scan.skipped if skip.pid == other]
    assert "claims to be domain db1" in reported and "left alone" in reported


@pytest.mark.kvm
@pytest.mark.parametrize(
    "said", [("-name", "guest=other"), ("-uuid", UUID.replace("4", "5"), "-name", "guest=db1")]
)
def test_who_was_started_as_a_domain_and_does_not_say_so_is_reported_and_left_alone(
    tmp_path: Path, claim: Callable[..., int], said: tuple[str, ...]
):
    """A QEMU that its guest took over changes its command line, and would have others' policy."""
    pid = claim(*said)
    (tmp_path / "db1.pid").write_text(f"{pid}\n")
    scan = GuestFinder(Reporting(), run=tmp_path).find()
    assert found(scan, pid) == {}
    assert any("libvirt started it" in skip.reason for skip in scan.skipped if skip.pid == pid)
    # Without libvirt there is nobody to know better.
    assert found(GuestFinder(run=tmp_path).find(), pid).keys() == {pid}


@pytest.mark.kvm
@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), UnsupportedHostError("Too many open files")]
)
def test_a_domain_whose_command_line_cannot_be_read_for_a_while_stays_that_domain(
    tmp_path: Path, claim: Callable[..., int], monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def fail(*_: object) -> list[str]:
        raise error

    pid = claim()
    (tmp_path / "db1.pid").write_text(f"{pid}\n")
    finder, later = GuestFinder(Reporting(), run=tmp_path), GuestFinder(Reporting(), run=tmp_path)
    assert found(finder.find(), pid) == {pid: ("db1", "libvirt")}
    monkeypatch.setattr(guest_finder, "read_command_line", fail)
    assert found(finder.find(), pid) == {pid: ("db1", "libvirt")}
    # One that was never read is no other guest either.
    scan = later.find()
    assert found(scan, pid) == {} and any(str(error) in skip.reason for skip in scan.skipped)


@pytest.mark.kvm
def test_a_domain_is_found_though_its_users_other_processes_hold_readers_up(
    tmp_path: Path, claim: Callable[[], int], monkeypatch: pytest.MonkeyPatch
):
    """As do other guests of libvirt, which are all of one user."""
    mine = Held()
    for name in ("bounded", "holds", "probe", "keep", "vouch"):
        monkeypatch.setattr(held, name, getattr(mine, name))
    real, other = claim(), claim()
    (tmp_path / "db1.pid").write_text(f"{real}\n")
    for pid in range(99_999_000, 99_999_100):
        monkeypatch.setattr("vmplace.held._user_of", lambda *_: os.geteuid())
        mine.note_stuck(pid, lambda: False)
    scan = GuestFinder(Reporting(), run=tmp_path).find()
    assert found(scan, real, other) == {real: ("db1", "libvirt")}
    assert other in {skip.pid for skip in scan.skipped if skip.reason == held.HELD}
    mine.close()


@pytest.mark.kvm
def test_of_those_in_a_domains_control_group_one_has_room_of_its_own(
    tmp_path: Path, claim: Callable[[], int], monkeypatch: pytest.MonkeyPatch
):
    """A guest that took over its QEMU starts children, which are in that group, too."""
    vouched: list[frozenset[int]] = []
    monkeypatch.setattr(held, "vouch", vouched.append)
    monkeypatch.setattr("vmplace.topology.domain_owner._in_cgroup_of", lambda *_: True)
    answer = LibvirtAnswer({UUID: GuestDescription("db1", uuid=UUID)}, names={UUID: "db1"})
    monkeypatch.setattr(Reporting, "read", lambda *_: answer)
    first, _, _ = claim(), claim(), claim()
    GuestFinder(Reporting(), run=tmp_path).find()
    assert vouched[-1] == {first}


@pytest.mark.kvm
def test_nobody_is_the_domain_whose_process_libvirt_does_not_tell(tmp_path: Path, claim: Callable[[], int]):
    pid = claim()
    scan = GuestFinder(Reporting(), run=tmp_path).find()
    assert found(scan, pid) == {}


@pytest.mark.kvm
def test_what_a_domain_says_is_waited_for_while_libvirtd_is_down(tmp_path: Path, claim: Callable[[], int]):
    class Down(Libvirt):
        def __init__(self) -> None: ...

        def read(self, uuids: frozenset[str] = frozenset()) -> LibvirtAnswer:
            return LibvirtAnswer(problem="libvirt: Failed to connect socket")

    pid = claim()
    finder = GuestFinder(Down(), run=tmp_path)
    # QEMU with a UUID that somebody else started: nobody will ever tell of it.
    assert finder.find().awaited == frozenset()
    (tmp_path / "db1.pid").write_text(f"{pid}\n")
    assert finder.find().awaited == {UUID}


@pytest.mark.kvm
def test_without_libvirt_the_name_is_the_first_ones(tmp_path: Path, claim: Callable[[], int]):
    finder = GuestFinder(run=tmp_path)
    first = claim()
    assert found(finder.find(), first) == {first: ("db1", "kvm")}
    second = claim()
    assert found(finder.find(), first, second) == {
        first: ("db1", "kvm"), second: (f"db1-{second}", "kvm"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("group", "name", "is_so"),
    [
        ("0::/machine.slice/machine-qemu\\x2d7\\x2ddb1.scope/libvirt/emulator", "db1", True),
        ("4:cpuset:/machine/qemu-7-db1.libvirt-qemu/vcpu0", "db1", True),
        ("0::/machine.slice/machine-qemu\\x2d7\\x2dweb\\x2d1.scope", "web 1!", True),
        ("0::/machine.slice/machine-qemu\\x2d7\\x2d" + "a" * 50 + ".scope", "a" * 80, True),
        ("0::/machine.slice/machine-qemu\\x2d7\\x2ddb.scope", "db1", False),
        ("0::/machine.slice/machine-qemu\\x2d7\\x2ddb1.scope", "db", False),
        ("0::/dear.slice/dear-er.slice/machine-qemu\\x2d7\\x2ddb1.scope", "db1", True),
        ("4:cpuset:/machine/dear.partition/qemu-7-db1.libvirt-qemu/vcpu0", "db1", True),
        # A user's own: systemd-run --user --scope --unit=machine-qemu-7-db1
        ("0::/user.slice/user-7.slice/user@7.service/app.slice/machine-qemu-7-db1.scope", "db1", False),
        ("0::/machine.slice/machine-lxc\\x2d1\\x2dx.scope/machine-qemu-7-db1.scope", "db1", False),
        ("1:name=systemd:/lxc.payload.x/machine-qemu-7-db1.scope", "db1", False),
        ("0::/user.slice/machine-qemu", "db1", False),
        ("0::/user.slice/db1", "db1", False),
    ],
)
def test_the_cgroup_tells_where_there_is_no_file_of_the_pid(
    tmp_path: Path, group: str, name: str, is_so: bool
):
    (tmp_path / "12").mkdir()
    (tmp_path / "12/cgroup").write_text(group + "\n")
    assert is_of_domain(12, name, run=tmp_path / "run", proc=tmp_path) == is_so


@pytest.mark.parametrize("text", ["13", "", "12 12", "x" * 100_000, "1_2"])
def test_a_file_that_tells_another_pid_or_nothing_is_no_proof(tmp_path: Path, text: str):
    (tmp_path / "db1.pid").write_text(text)
    assert not is_of_domain(12, "db1", run=tmp_path, proc=tmp_path)


def test_a_name_leads_out_of_the_folder_nowhere(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "db1.pid").write_text(f"{os.getpid()}")
    assert not is_of_domain(os.getpid(), "../db1", run=tmp_path / "run", proc=tmp_path)


@pytest.mark.kvm
def test_dear_processes_hold_up_a_look_no_longer_than_so_and_never_what_libvirt_runs(
    tmp_path: Path, claim: Callable[[], int], monkeypatch: pytest.MonkeyPatch
):
    class Named(Reporting):
        def read(self, uuids: frozenset[str] = frozenset()) -> LibvirtAnswer:
            return LibvirtAnswer(self.domains, names={UUID: "db1"})

    others = [claim() for _ in range(3)]
    real = claim()
    (tmp_path / "db1.pid").write_text(f"{real}\n")
    now, read = 1000.0, list[int]()
    finder = GuestFinder(Named(), run=tmp_path, cpu=lambda: now)
    plain = GuestReader.read

    def dear(self: GuestReader, process: KvmProcess, ordered: object, *known: object) -> GuestTopology:
        nonlocal now
        if process.pid not in {real, *others}:
            raise GuestGoneError("another test's")
        read.append(process.pid)
        now += 0.6 * LOOK_S
        return plain(self, process, None if process.pid in others else ordered, *known)  # type: ignore[arg-type]

    monkeypatch.setattr(GuestReader, "read", dear)
    first = finder.find()
    assert read == [real, others[0]] and set(found(first, real, *others)) == set(read)
    assert {skip.pid for skip in first.skipped if "not read yet" in skip.reason} >= set(others[1:])
    now += 60
    finder.find()
    assert read[2:] == [real, others[1]]
    now += 60
    # By then all are known, though two are read in a look.
    assert set(found(finder.find(), real, *others)) == {real, *others}
    assert read[4:] == [real, others[2]]


@pytest.mark.kvm
def test_a_look_ends_by_the_clock_too_where_others_have_the_cpus(
    claim: Callable[[], int], monkeypatch: pytest.MonkeyPatch
):
    mine = [claim() for _ in range(3)]
    now, read = 1000.0, list[int]()
    finder = GuestFinder(cpu=lambda: 0.0, clock=lambda: now)
    plain = GuestReader.read

    def slow(self: GuestReader, process: KvmProcess, ordered: object, *known: object) -> GuestTopology:
        nonlocal now
        if process.pid not in mine:
            raise GuestGoneError("another test's")
        read.append(process.pid)
        now += 0.6 * BUSY * LOOK_S
        return plain(self, process, ordered, *known)  # type: ignore[arg-type]

    monkeypatch.setattr(GuestReader, "read", slow)
    finder.find()
    assert len(read) == 2


def test_processes_that_are_left_come_first_in_the_next_look(tmp_path: Path):
    for pid in (11, 12, 13):
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (qemu) S " + " ".join(["1"] * 49) + "\n")
        for number, target in enumerate(("anon_inode:kvm-vm", "anon_inode:kvm-vcpu:0")):
            (tmp_path / f"{pid}/fd/{number}").symlink_to(target)
    processes = KvmProcesses(tmp_path)

    def limit() -> Callable[[], bool]:
        asked = itertools.count()
        return lambda: next(asked) > 0

    found = [{process.pid for process in processes.find(limit)[0]} for _ in range(3)]
    assert found == [{11}, {11, 12}, {11, 12, 13}]


class Dear:
    """A /proc of processes each of which takes so much CPU time to look at; their users are given here."""

    def __init__(self, proc: Path, monkeypatch: pytest.MonkeyPatch, look_s: float) -> None:
        self.now, self.proc, self.users, self.looked = 1000.0, proc, dict[int, int](), list[int]()
        plain_stat, plain_read = os.stat, procfs.read_descriptors

        def stat(path: str) -> os.stat_result:
            stat_result, uid = plain_stat(path), self.users[int(Path(path).name)]
            return os.stat_result([*stat_result[:4], uid, *stat_result[5:10]])

        def read(pid: int, proc: Path) -> dict[int, str]:
            self.now += look_s
            self.looked.append(pid)
            return plain_read(pid, proc)

        monkeypatch.setattr(guests_kvm, "os", SimpleNamespace(stat=stat, stat_result=os.stat_result))
        monkeypatch.setattr(guests_kvm, "read_descriptors", read)
        self.processes = KvmProcesses(proc, lambda: self.now, cpu=lambda: self.now)

    def run(self, pid: int, uid: int, *targets: str) -> None:
        (self.proc / f"{pid}/fd").mkdir(parents=True, exist_ok=True)
        (self.proc / f"{pid}/stat").write_text(f"{pid} (a) S " + " ".join([str(pid)] * 49) + "\n")
        for number, target in enumerate(targets):
            (self.proc / f"{pid}/fd/{number}").symlink_to(target)
        self.users[pid] = uid

    def find(self, first: tuple[int, ...] = ()) -> set[int]:
        """Look for 2.5 s."""

        def limit() -> Callable[[], bool]:
            end = self.now + 2.5
            return lambda: self.now >= end

        return {process.pid for process in self.processes.find(limit, first)[0]}


KVM_FILES = ("anon_inode:kvm-vm", "anon_inode:kvm-vcpu:0")


def test_what_libvirt_started_is_found_before_processes_that_anybody_made_dear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dear = Dear(tmp_path, monkeypatch, look_s=0.2)
    for pid in range(100, 200):
        dear.run(pid, 64055)
    dear.run(500, 64055, *KVM_FILES)
    assert dear.find() == set()
    assert dear.find(first=(500,)) == {500}


def test_a_user_with_many_dear_processes_makes_no_other_user_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dear = Dear(tmp_path, monkeypatch, look_s=0.2)
    for pid in range(100, 400):
        dear.run(pid, 65_000)
    dear.run(500, 7)
    assert dear.find() == set() and 500 in dear.looked
    # It opens KVM later, as QEMU does: it is found when it is due, which is after a second.
    dear.run(500, 7, *KVM_FILES)
    dear.now += 3
    assert dear.find() == {500}
    # And those of the one user are all looked at in the end.
    for _ in range(40):
        dear.now += 12.5
        assert dear.find() == {500}
    assert set(dear.looked) == {*range(100, 400), 500}


def test_a_process_that_sleeps_is_not_read_until_it_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read = list[int]()
    plain = procfs.read_start_time

    def counted(pid: int, proc: Path) -> int:
        read.append(pid)
        return plain(pid, proc)

    monkeypatch.setattr(guests_kvm, "read_start_time", counted)
    dear = Dear(tmp_path, monkeypatch, look_s=0)
    for pid in range(100, 200):
        dear.run(pid, 7)
    dear.find()
    read.clear()
    dear.find()
    assert read == []


def test_a_pid_that_another_process_has_now_is_looked_at_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dear = Dear(tmp_path, monkeypatch, look_s=0)
    dear.run(12, 7)
    for _ in range(8):
        dear.now += 100
        assert dear.find() == set()
    # Kept, so that its inode is not given to the other one: the kernel gives none twice either.
    (tmp_path / "12").rename(tmp_path / "ended")
    dear.run(12, 7, *KVM_FILES)
    (tmp_path / "12/stat").write_text("12 (a) S " + " ".join(["9"] * 49) + "\n")
    assert dear.find() == {12}


@pytest.mark.kvm
@pytest.mark.parametrize("cpu_s", [0.0, 1.01 * LOOK_S])
def test_processes_without_kvm_that_use_up_their_part_of_the_look_keep_no_guest_from_being_read(
    tmp_path: Path, claim: Callable[[], int], monkeypatch: pytest.MonkeyPatch, cpu_s: float
):
    real = claim()
    (tmp_path / "db1.pid").write_text(f"{real}\n")
    now = 1000.0
    finder = GuestFinder(Reporting(), run=tmp_path, cpu=lambda: now)
    plain = procfs.read_descriptors

    def dear(pid: int, proc: Path) -> dict[int, str]:
        nonlocal now
        now += cpu_s
        return plain(pid, proc)

    monkeypatch.setattr(guests_kvm, "read_descriptors", dear)
    for _ in range(3):
        assert found(finder.find(), real) == {real: ("db1", "libvirt")}
        now += 60


def test_of_a_process_with_half_a_million_files_the_first_are_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(procfs, "MOST_DESCRIPTORS", 100)
    monkeypatch.setattr(os, "listdir", None)
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(300)]
    try:
        assert len(procfs.read_descriptors(os.getpid())) <= 100
    finally:
        for file in files:
            os.close(file)
