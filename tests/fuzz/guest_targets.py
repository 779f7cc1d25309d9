"""What is read of guests and of the host: /proc, sysfs, QEMU, libvirt, KVM."""

import json
import shutil
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.fuzz.target import DATA, SCRATCH, Target, captured, first_lines, just, text_of
from vmplace import thread_waits
from vmplace.actuation import identity
from vmplace.sampling.dram_events import dram_events
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.description import GuestDescription
from vmplace.topology.distance import parse_distances
from vmplace.topology.domain_owner import is_of_domain
from vmplace.topology.domain_xml import parse_domain
from vmplace.topology.guests_libvirt import _answer_of, _checked
from vmplace.topology.hmat import read_hmat
from vmplace.topology.kvm_statistics import parse_statistics
from vmplace.topology.monitor_layout import locate_exact
from vmplace.topology.movability import find_process_pin
from vmplace.topology.numad import parse_command_line, parse_log
from vmplace.topology.procfs import Vma, parse_maps, parse_smaps, parse_start_time, parse_status, status_uid
from vmplace.topology.qemu_command_line import parse_qemu
from vmplace.topology.ram import build_ranges, locate_ram, select_candidates
from vmplace.topology.sysfs import parse_node_meminfo
from vmplace.topology.vcpus import _ask_waiting_threads, find_vcpu_tids

DOMAINS = DATA / "domains"
XML = sorted(path for path in DOMAINS.glob("*.xml") if path.stem != "entity-bomb")
COMMAND_LINES = (
    b"qemu-system-x86_64\0-name\0guest=db1,debug-threads=on\0-m\0size=1048576k\0-M\0q35\0-object\0"
    b'{"qom-type":"memory-backend-ram","id":"a","size":1073741824}\0-numa\0node,nodeid=0,cpus=0-1,memdev=a\0',
    b"kvm\0-object\0memory-backend-ram,id=b,size=1G\0-numa\0node,nodeid=1,cpus=2,memdev=b\0-uuid\0x\0",
)
STATUS = b"Name:\tqemu\nVmLck:\t       0 kB\nVmPin:\t 1048576 kB\nVmRSS:\t  1400 kB\nUid:\t64055\t0\t0\t0\n"
STAT = b"12 (CPU 0/KVM) S 1 12 12 0 -1 4194624 100 0 0 0 7 8 0 0 20 0 9 0 777 1000 10 18446744073709551615\n"


@cache
def description() -> GuestDescription:
    """Return what libvirt tells of the guest whose mappings are in tests/data."""
    return parse_domain((DOMAINS / "q35-3cells.xml").read_text())


@cache
def candidates() -> list[Vma]:
    """Return its mappings."""
    return select_candidates(parse_smaps((DOMAINS / "q35-3cells.smaps").read_text()))


def guest_ram(data: bytes) -> None:
    """Find a guest's RAM in smaps, as guest_finder does."""
    vmas = parse_smaps(text_of(data))
    placed = locate_ram(select_candidates(vmas), description())
    build_ranges(placed, find_process_pin({3: "/dev/vfio/1"}, {}, vmas, 1 << 30))


def libvirt_answer(data: bytes) -> None:
    """Take what the worker prints."""
    _answer_of(_checked(0, text_of(data)))


def monitor(data: bytes) -> None:
    """Take the answers of QEMU's monitor, one behind the other."""
    blocks, _, view = text_of(data).partition("\0")
    build_ranges(locate_exact(blocks, view, candidates(), description()), None)


def threads(data: bytes) -> None:
    """Tell vCPUs by the names of threads and descriptors, a line each."""
    names = dict(enumerate(text_of(data).split("\n")))
    find_vcpu_tids(1, names, names, SCRATCH, SCRATCH)


def syscall(data: bytes) -> None:
    """Tell which thread is in KVM_RUN by its registers, as an old kernel has them."""
    put("1/task/5/syscall", data)
    _ask_waiting_threads(1, {9: 0}, {5: "qemu"}, SCRATCH)


def waits(data: bytes) -> None:
    """Tell whether a thread works or waits, by its stat and schedstat."""
    stat, _, schedstat = data.partition(b"\0")
    put("1/task/5/schedstat", schedstat)
    look = thread_waits.waiting_since(put("1/task/5/stat", stat))
    assert look is None or min(look) >= 0


def hmat(data: bytes) -> None:
    """Take what firmware says: names of initiators a line each, then bandwidth, then latency."""
    names, _, figures = data.partition(b"\0")
    bandwidth, _, latency = figures.partition(b"\0")
    folder = SCRATCH / "devices/system/node/node0/access1/initiators"
    shutil.rmtree(folder, ignore_errors=True)
    put(f"{folder}/read_bandwidth", bandwidth)
    put(f"{folder}/read_latency", latency)
    for name in names.decode("ascii", "ignore").replace("/", "").split("\n")[:4]:
        put(f"{folder}/node{name[:40]}/x".replace("\0", ""), b"")
    for figures_by_pair in read_hmat({0, 1}, [0], SCRATCH):
        assert all(pair[0] in {0, 1} and figure > 0 for pair, figure in figures_by_pair.items())


def numad(data: bytes) -> None:
    """Tell whom numad moves, by its command line and its log."""
    words, _, log = text_of(data).partition("\n")
    parse_log(parse_command_line(7, words.split("\0")), log)


def cpuinfo(data: bytes) -> None:
    """Choose counters by the CPU."""
    dram_events(put("cpuinfo", data))


def put(name: str, data: bytes) -> Path:
    """Write a file below SCRATCH; return its path."""
    path = SCRATCH / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def cgroup(data: bytes) -> None:
    """Tell whether a process in these control groups is a domain's."""
    put("1/cgroup", data)
    is_of_domain(1, "db1", run=SCRATCH, proc=SCRATCH)


GUEST_TARGETS: Mapping[str, Target] = {
    "cpulist": Target(lambda data: parse_cpulist(text_of(data)), just(b"0-3,^2,8,10-11")),
    "maps": Target(
        lambda data: parse_maps(text_of(data)), just(b"7f000-8f000 rw-p 00000000 00:00 0  [heap]\n")
    ),
    "smaps": Target(guest_ram, first_lines(DOMAINS / "q35-3cells.smaps", 120)),
    "status": Target(
        lambda data: (
            find_process_pin({}, parse_status(text_of(data)), [], 1 << 30),
            status_uid(parse_status(text_of(data))),
        ),
        just(STATUS),
    ),
    "stat": Target(lambda data: parse_start_time(text_of(data)), just(STAT)),
    "threads": Target(threads, just(b"CPU 0/KVM\nanon_inode:kvm-vcpu:0\nanon_inode:kvm-vm\nvcpu1")),
    "command_line": Target(lambda data: parse_qemu(text_of(data).split("\0")[:-1]), just(*COMMAND_LINES)),
    "domain_xml": Target(lambda data: parse_domain(text_of(data)), captured(*XML)),
    "libvirt": Target(
        libvirt_answer, lambda: [json.dumps({"domains": [["u", "n", XML[1].read_text()]]}).encode()]
    ),
    "monitor": Target(
        monitor,
        lambda: [b"\0".join((DOMAINS / f"q35-3cells.{kind}").read_bytes() for kind in ("ramblock", "mtree"))],
    ),
    "meminfo": Target(
        lambda data: parse_node_meminfo(text_of(data)), just(b"Node 0 MemTotal:  8150000 kB\n")
    ),
    "distances": Target(lambda data: parse_distances(text_of(data)), just(b"10 20 20 20\n")),
    "kvm_statistics": Target(
        parse_statistics,
        just(struct.pack("<6I", 0, 8, 1, 0, 24, 64) + bytes(16) + b"exits\0\0\0" + bytes(40)),
    ),
    "syscall": Target(syscall, just(b"16 0x9 0xae80 0x0 0x0 0x0 0x0 0x7ffe0 0x7f00\n", b"running\n")),
    "waits": Target(waits, just(STAT + b"\x002910 55 3\n")),
    "identity": Target(lambda data: identity.parse_start_time(text_of(data)), just(STAT)),
    "hmat": Target(hmat, just(b"0\n1\x0040960\n\x00100\n")),
    "numad": Target(
        numad, just(b"numad\0-S\x000\0-p 12\nnumad started, PID 7\nAdding PID 12 to exclusion\n")
    ),
    "cpuinfo": Target(cpuinfo, just(b"vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t: 17\n\nx")),
    "cgroup": Target(cgroup, just(b"0::/machine.slice/machine-qemu\\x2d7\\x2ddb1.scope/libvirt/emulator\n")),
}
