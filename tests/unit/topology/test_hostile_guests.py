"""Whoever may open /dev/kvm chooses file names, thread names and arguments: they spoil no other guest."""

import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmplace.errors import OutsideError
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.guest import GuestTopology, Movability
from vmplace.topology.guest_finder import GuestFinder, GuestScan
from vmplace.topology.movability import find_process_pin
from vmplace.topology.procfs import parse_smaps, parse_status, read_maps, read_smaps
from vmplace.topology.qemu_command_line import parse_qemu
from vmplace.topology.vcpus import find_vcpu_tids

CHILD = Path(__file__).with_name("kvm_child.py")
FORGED_LINE = "x\v100000000000-500000000000 rw-p 00000000 00:00 0 "
FORGED_SIZE = "x\vKernelPageSize: evil"
NOT_UTF8 = b"\xff\x1b]0;owned\x07"


def mapped(path: bytes) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 1 << 20)
    room = mmap.mmap(fd, 1 << 20, mmap.MAP_PRIVATE)
    os.close(fd)
    return room


@pytest.mark.parametrize(
    "name", [FORGED_LINE, FORGED_SIZE, "x\x85KernelPageSize: 0 kB", "x\u2028VmFlags: lo ht"]
)
def test_a_file_name_of_a_real_mapping_poses_as_no_line(tmp_path: Path, name: str):
    room = mapped(os.fsencode(tmp_path / name))
    for vmas in (read_maps(os.getpid()), read_smaps(os.getpid())):
        mine = [vma for vma in vmas if vma.path.startswith(str(tmp_path))]
        assert [(vma.size_bytes, vma.page_size_bytes, vma.path) for vma in mine] == [
            (1 << 20, 4096, str(tmp_path / name))
        ]
        assert not mine[0].flags & {"lo", "ht"}
        assert not [vma for vma in vmas if vma.start == 0x100000000000]
    room.close()


@pytest.mark.parametrize(
    "size", ["evil", "0 kB", "-4 kB", "5 kB", "9" * 5000 + " kB", ""], ids=lambda size: size[:8]
)
def test_a_page_size_that_no_machine_has_is_refused(size: str):
    text = f"1000-2000 rw-p 00000000 00:00 0 \nKernelPageSize: {size}\nVmFlags: rd\n"
    with pytest.raises(OutsideError):
        parse_smaps(text)


def test_more_mappings_than_any_guest_has_are_refused():
    text = "".join(f"{i:x}000-{i + 1:x}000 rw-p 00000000 00:00 0 \nVmFlags: rd\n" for i in range(1, 10_002))
    with pytest.raises(OutsideError, match="10000 mappings"):
        parse_smaps(text)


@pytest.mark.parametrize(
    "text",
    ["0-9999999999", "0-30000000", "5-3", "1_0", "٣", "-1", "^", "0-", "9" * 5000, "0-65535," * 4000],
    ids=lambda text: text[:16],
)
def test_a_list_of_cpus_is_bounded(text: str):
    with pytest.raises(OutsideError):
        parse_cpulist(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-numa", "node,cpus=0-9999999999"),
        ("-object", '{"qom-type":' + "[" * 20_000),
        ("-object", '{"qom-type":"memory-backend-ram","id":"a","size":' + "9" * 5000 + "}"),
        ("-object", "memory-backend-ram,id=a,size=" + "9" * 5000),
        ("-m", "99999999999999999999T"),
        ("-numa", "node") * 200,
        ("-numa", "node,cpus=0-9000") * 2,
    ],
)
def test_arguments_that_qemu_would_refuse_order_nothing(arguments: tuple[str, ...]):
    assert parse_qemu(["qemu-system-x86_64", *arguments]) is None


def test_a_thread_name_forges_no_line_of_its_status():
    text = "Name:\tx\vVmPin: 99999999 kB\nVmPin:\t       0 kB\n"
    assert parse_status(text)["VmPin"] == "0 kB"


def test_a_path_with_dev_vfio_in_it_is_no_device():
    assert find_process_pin({3: "/home/eve/dev/vfio/1"}, {}, [], 1 << 30) is None


def test_what_a_descriptor_is_called_is_reported_in_print():
    pin = find_process_pin({3: "/dev/vfio/\udcff\x1b]0;owned\x07" + "x" * 500}, {}, [], 1 << 30)
    assert pin is not None
    assert pin.movability is Movability.PINNED
    assert pin.reason.isprintable()
    assert len(pin.reason) < 120


def test_threads_that_call_themselves_vcpus_are_not_believed_beyond_those_of_kvm(tmp_path: Path):
    descriptors = {9: "anon_inode:kvm-vm", 10: "anon_inode:kvm-vcpu:0"}
    threads = {tid: f"CPU {tid}/KVM" for tid in range(1, 1000)}
    assert find_vcpu_tids(1, descriptors, threads, tmp_path, tmp_path) == {}


def test_a_name_prints_and_is_short():
    evil = 'a\n<3>order=undo guest=all reason="asked by root"\x1b]0;pwned\x07' + "x" * 100_000
    name = GuestTopology(evil, 1, 1, "kvm", (), ()).name
    assert name.isprintable()
    assert len(name) <= 64
    assert name.startswith("a?<3>order=undo")


def test_long_names_stay_apart():
    one, other = (GuestTopology("x" * 100 + end, 1, 1, "libvirt", (), ()).name for end in "ab")
    assert one != other


# The children: what is wrong with each, and the words of the note on it (empty: it is taken up).
HOSTILE: dict[str, tuple[tuple[str, ...], dict[bytes, bytes]]] = {
    "a name that forges a line": ((), {b"MAPFILE": FORGED_LINE.encode()}),
    "a name that forges a size": ((), {b"MAPFILE": FORGED_SIZE.encode()}),
    "a name that is no UTF-8": ((), {b"MAPFILE": b"pub/dev/vfio/" + NOT_UTF8}),
    "nested JSON": (("-object", '{"qom-type":' + "[" * 20_000), {}),
    "too many CPUs": (("-numa", "node,cpus=0-9999999999"), {}),
    "lines in its name": (("-name", "guest=a\n<3>order=undo\x1b]0;owned\x07"), {}),
}


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[list[int]]:
    started = []
    for arguments, environment in HOSTILE.values():
        reported = {**os.environb, **environment}
        if name := environment.get(b"MAPFILE"):
            reported[b"MAPFILE"] = path = os.fsencode(tmp_path) + b"/" + name
            Path(os.fsdecode(path)).parent.mkdir(parents=True, exist_ok=True)
            mapped(path).close()
        started.append(start(("private", "1", "CPU {}/KVM", *arguments), reported))
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.communicate()


def start(arguments: tuple[str, ...], environment: dict[bytes, bytes]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["qemu-system-x86_64", str(CHILD), *arguments],
        executable=sys.executable,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def touches_of(scan: GuestScan) -> str:
    names = [guest.name for guest in scan.guests]
    return " ".join(
        [*names, *(ram.reason for guest in scan.guests for ram in guest.ram), *map(str, scan.skipped)]
    )


@pytest.mark.slow
@pytest.mark.kvm
def test_hostile_processes_spoil_neither_a_look_nor_what_it_tells(hostile: list[int]):
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scan = GuestFinder().find()
    assert {guest.pid for guest in scan.guests} >= set(hostile)
    assert touches_of(scan).isprintable()
    for guest in (guest for guest in scan.guests if guest.pid in hostile):
        assert all(ram.hva != 0x100000000000 for ram in guest.ram)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 << 10


@pytest.mark.slow
@pytest.mark.kvm
def test_what_no_rule_foresaw_is_that_guests_note(hostile: list[int], monkeypatch: pytest.MonkeyPatch):
    def fail(pid: int, *_: object) -> object:
        if pid == hostile[0]:
            raise ZeroDivisionError("unforeseen")
        return read_smaps(pid)

    monkeypatch.setattr("vmplace.topology.guest_reader.read_smaps", fail)
    scan = GuestFinder().find()
    assert {guest.pid for guest in scan.guests} >= set(hostile[1:])
    assert [skip.reason for skip in scan.skipped if skip.pid == hostile[0]] == [
        "left alone: ZeroDivisionError: unforeseen"
    ]
