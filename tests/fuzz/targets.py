"""What is fed to whom: every reader of what comes from outside, as a function of bytes.

A target may raise VmplaceError and nothing else.  Its seeds are real: captured from kernels, QEMU, libvirt
and perf (tests/data), or written by vmplace itself.
"""

import base64
import contextlib
import io
import json
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from lab import report_scenario
from lab.scenario import parse_scenario
from lab.topology import parse_topology, qemu_arguments
from tests.unit.agent.agent_world import HOST as HANDOVER_HOST
from tests.unit.agent.test_guest_policy import WHOLE, domain_xml
from tests.unit.lab.scenario_figures import manager
from tests.unit.model.test_handover import a_guest, halves, window
from tests.unit.model.test_handover import handed_over as handover_of_halves
from tests.unit.sampling.test_recording import HOST, batch, guest, with_users
from tests.unit.simulate.small_trace import private_pages
from tests.unit.topology.test_calibration import FOUR, MACHINE, calibration
from vmplace.actuation.journal import JournalContents, parse_journal
from vmplace.actuation.journal_records import (
    MAGIC,
    AffinityRecord,
    GuestId,
    GuestUndoneRecord,
    PagesRecord,
    Record,
    SysctlRecord,
    SysctlReturnedRecord,
    framed,
)
from vmplace.actuation.page_runs import decode_runs, encode_pages
from vmplace.agent.config import parse_config
from vmplace.agent.decided import Decided, changed_words, decided
from vmplace.agent.dry_run import rehearse
from vmplace.agent.news import parse_news
from vmplace.interfaces.policy_view import policy_view
from vmplace.interfaces.protocol import parse_request
from vmplace.interfaces.report_policy import _summary, parse_policy_table
from vmplace.model.handover import parse_handover
from vmplace.model.prior_pages import prior_pages
from vmplace.policy import home
from vmplace.policy.plan import GuestSettings
from vmplace.sampling.perf_recording import perf_recording
from vmplace.sampling.perf_script import RecordedHeader, RecordedSamples, parse_header, parse_samples
from vmplace.sampling.recording import (
    FILE_HEAD,
    FILE_MAGIC,
    FRAME_HEAD,
    FRAME_MAGIC,
    VERSION,
    Recorder,
    iter_recording,
)
from vmplace.sampling.recording_frames import PlanFrame, PlannedGuest, RunFrame
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.host_file import SimulatedHost, parse_host
from vmplace.simulate.trace import WANTED, Trace, parse_trace, read_trace
from vmplace.topology.bandwidth import bandwidth_weights
from vmplace.topology.calibration import calibrated, read_calibration
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.description import GuestDescription
from vmplace.topology.distance import parse_distances
from vmplace.topology.domain_owner import is_of_domain
from vmplace.topology.domain_policy import domain_policy
from vmplace.topology.domain_xml import parse_domain
from vmplace.topology.guests_libvirt import _answer_of, _checked
from vmplace.topology.kvm_statistics import parse_statistics
from vmplace.topology.monitor_layout import locate_exact
from vmplace.topology.movability import find_process_pin
from vmplace.topology.procfs import Vma, parse_maps, parse_smaps, parse_start_time, parse_status
from vmplace.topology.qemu_command_line import parse_qemu
from vmplace.topology.ram import build_ranges, locate_ram, select_candidates
from vmplace.topology.sysfs import parse_node_meminfo
from vmplace.topology.vcpus import find_vcpu_tids

DATA = Path(__file__).parents[1] / "data"
DOMAINS, PERF = DATA / "domains", DATA / "perf"
TOPOLOGIES = DATA.parents[1] / "lab/topologies"
SCENARIOS = DATA.parents[1] / "lab/scenarios"
SCRATCH = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
COMMAND_LINES = (
    b"qemu-system-x86_64\0-name\0guest=db1,debug-threads=on\0-m\0size=1048576k\0-M\0q35\0-object\0"
    b'{"qom-type":"memory-backend-ram","id":"a","size":1073741824}\0-numa\0node,nodeid=0,cpus=0-1,memdev=a\0',
    b"kvm\0-object\0memory-backend-ram,id=b,size=1G\0-numa\0node,nodeid=1,cpus=2,memdev=b\0-uuid\0x\0",
)
STATUS = b"Name:\tqemu\nVmLck:\t       0 kB\nVmPin:\t 1048576 kB\nVmRSS:\t  1400 kB\n"
STAT = b"12 (CPU 0/KVM) S 1 12 12 0 -1 4194624 100 0 0 0 7 8 0 0 20 0 9 0 777 1000 10 18446744073709551615\n"
CONFIG = b"""window_ms = 500
source = "idle"
[budget]
call_ms = 5
[guests."db*"]
allowed_nids = [0, 1]
"""


@dataclass(frozen=True)
class Target:
    """``feed`` takes one input; ``seeds`` are inputs that are as they ought to be."""

    feed: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]


def text_of(data: bytes) -> str:
    """Return the text as the gate decodes it."""
    return data.decode(errors="replace")


@cache
def description() -> GuestDescription:
    """Return what libvirt tells of the guest whose mappings are in tests/data."""
    return parse_domain((DOMAINS / "q35-3cells.xml").read_text())


@cache
def candidates() -> list[Vma]:
    """Return its mappings."""
    return select_candidates(parse_smaps((DOMAINS / "q35-3cells.smaps").read_text()))


@cache
def header() -> RecordedHeader:
    """Return the header of a recording of perf."""
    return parse_header((PERF / "two-vcpus.header.txt").read_text().splitlines())


@cache
def samples() -> RecordedSamples:
    """Return some samples of it."""
    return parse_samples((PERF / "two-vcpus.samples.txt").read_text().splitlines()[:50])


@cache
def host() -> SimulatedHost:
    """Return a host of four nodes."""
    return parse_host((TOPOLOGIES / "n4-full.toml").read_text(), name="x")


@cache
def trace() -> Trace:
    """Return a small trace."""
    return parse_trace(private_pages(windows=2, npages=8), name="t")


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


def perf_samples(data: bytes) -> None:
    """Make a recording of samples, with a header that is sound."""
    recording = perf_recording(header(), parse_samples(text_of(data).split("\n")))
    for at, _ in enumerate(recording.iter_batches(1000)):
        if at > 4:
            break


def perf_header(data: bytes) -> None:
    """Make a recording with a header that may not be."""
    recording = perf_recording(parse_header(text_of(data).split("\n")), samples())
    next(recording.iter_batches(1000))


def recording(data: bytes) -> None:
    """Run a policy over a recording."""
    path = SCRATCH / "x.vmptrace"
    path.write_bytes(data)
    rehearse(iter_recording(path), home.plan, lambda _: GuestSettings())


def frames(data: bytes) -> None:
    """Run a policy over frames whose lengths and sums are right: lines, head and body in turn."""
    parts = data.split(b"\n")
    content = FILE_HEAD.pack(FILE_MAGIC, VERSION)
    for head, raw in zip(parts[::2], parts[1::2], strict=False):
        body = zlib.compress(raw, 1) if raw else b""
        content += FRAME_HEAD.pack(FRAME_MAGIC, len(head), len(body), zlib.crc32(head + body)) + head + body
    recording(content)


def npz(data: bytes) -> None:
    """Read a trace's file."""
    path = SCRATCH / "t.npz"
    path.write_bytes(data)
    read_trace(path)


def arrays(data: bytes) -> None:
    """Read a trace whose archive is sound: its members in the order of their names, each with a length."""
    out, at = io.BytesIO(), 0
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(WANTED):
            (size,) = struct.unpack_from("<H", data.ljust(at + 2, b"\0"), at)
            archive.writestr(f"{name}.npy", data[at + 2 : at + 2 + size])
            at += 2 + size
    npz(out.getvalue())


def guest_option(data: bytes) -> None:
    """Take a guest's options on a host."""
    options = dict(part.partition("=")[::2] for part in text_of(data).split(","))
    guest_spec("a", trace(), options, host())


def bandwidths(data: bytes) -> None:
    """Use a calibration."""
    path = SCRATCH / "bandwidth.json"
    path.write_bytes(data)
    bandwidth_weights(calibrated(FOUR, read_calibration(MACHINE, path)), (0, 1))


def topology(data: bytes) -> None:
    """Make QEMU's arguments of a topology."""
    qemu_arguments(parse_topology(text_of(data), name="x"), "/x")


def cgroup(data: bytes) -> None:
    """Tell whether a process in these control groups is a domain's."""
    (SCRATCH / "1").mkdir(exist_ok=True)
    (SCRATCH / "1/cgroup").write_bytes(data)
    is_of_domain(1, "db1", run=SCRATCH, proc=SCRATCH)


def domain_words(data: bytes) -> None:
    """Decide by what a domain's XML says of vmplace."""
    what = decided(parse_config("", Path("x")), "db1", domain_policy(text_of(data)), (0, 1))
    changed_words(Decided(what.settings), what)
    policy_view("db1", what, None)


def datagram(data: bytes) -> None:
    """Take what libvirt's hook sends."""
    if news := parse_news(data):
        printed = (news.operation + news.guest + news.uuid).replace("\t", "")
        assert printed.isprintable() or not printed


def journal(data: bytes) -> None:
    """Read a journal; what is written anew must say the same."""
    contents = parse_journal(data)
    again = JournalContents()
    for record in contents.records():
        again.fold(record)
    assert written_anew(again) == written_anew(contents)


def written_anew(contents: JournalContents) -> list[Record]:
    """Return the records of all that is left to undo."""
    left = {key: guest for key, guest in contents.guests.items() if not guest.is_empty}
    return list(JournalContents(left, contents.sysctls).records())


def journal_records(data: bytes) -> None:
    """Read a journal whose frames are sound: records between lines.

    A block takes 96 KiB for a single page: of root's own file that is believed, of a fuzzer's it is not.
    """
    if sum(map(pages_spread, data.split(b"\n--\n"))) > 1 << 10:
        return
    journal(MAGIC + b"".join(framed(payload) for payload in data.split(b"\n--\n")))


def pages_spread(payload: bytes) -> int:
    """Return how many pages the runs of a record have, at most; 0 for what is no such record."""
    try:
        record = msgspec.msgpack.decode(payload, type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0
    runs = [record.runs] if isinstance(record, PagesRecord) else list(getattr(record, "rest", ()))
    count = 0
    for one in runs:
        # The sound ones are taken in also where others are not.
        with contextlib.suppress(ValueError):
            count += decode_runs(one).total_pages
    return count


def recorded_moves() -> list[bytes]:
    """Return records of each kind."""
    guest = GuestId("db1", 7, 8, "boot")
    hva, one = np.arange(9, dtype=np.uint64) * np.uint64(4096), np.ones(9, np.uint32)
    runs, to = (encode_pages(hva, one, np.full(9, nid)).encoded() for nid in (0, 1))
    affinity = AffinityRecord(guest, 0, 9, 10, (0, 1), by_libvirt=False, set_to=(1,))
    records: list[Record] = [
        PagesRecord(guest, runs, to),
        affinity,
        SysctlRecord("kernel/numa_balancing", "1", "0", "boot"),
        SysctlReturnedRecord("kernel/numa_balancing"),
        GuestUndoneRecord(guest, (runs,), (affinity,), (to,)),
    ]
    return [msgspec.msgpack.encode(record) for record in records]


def recorded() -> list[bytes]:
    """Return a recording."""
    path = SCRATCH / "seed.vmptrace"
    with Recorder(path, HOST, overwrite=True) as recorder:
        for window in range(2):
            recorder.add(guest("a"), batch("a", window))
    plain = path.read_bytes()
    with Recorder(path, HOST, overwrite=True) as recorder:
        recorder.tell(RunFrame("auto", acted=True))
        recorder.add(guest("a"), with_users(batch("a", 2), 2))
        known = PlannedGuest("a", {"mode": "auto"}, 1.5, 2.0)
        recorder.tell(PlanFrame(1e9, 1.0, 1 << 20, 0.25, True, (known,), 0))
    return [plain, path.read_bytes()]


def recorded_frames() -> list[bytes]:
    """Return heads and bodies of a small recording, a line each."""
    lines, data, at = [], recorded()[0], FILE_HEAD.size
    while at < len(data):
        _, head, body, _ = FRAME_HEAD.unpack_from(data, at)
        at += FRAME_HEAD.size
        lines += [data[at : at + head], b""]
        at += head + body
    # With two ranges of 8 pages instead of thousands: 17 bytes each.
    small = [
        line.replace(b'"npages":3000', b'"npages":8').replace(b'"npages":700', b'"npages":8')
        for line in lines
    ]
    return [b"\n".join(b"\1" * 16 + b"\0" + b"\1" * 16 + b"\0" if b'"batch"' in small[i - 1] else one
                       for i, one in enumerate(small))]  # fmt: skip


def traced() -> list[bytes]:
    """Return a trace's file."""
    out = io.BytesIO()
    np.savez(out, **private_pages(windows=2, npages=8))
    return [out.getvalue()]


def traced_arrays() -> list[bytes]:
    """Return a trace's members, as ``arrays`` takes them."""
    with zipfile.ZipFile(io.BytesIO(traced()[0])) as archive:
        members = [archive.read(f"{name}.npy") for name in sorted(WANTED)]
    return [b"".join(struct.pack("<H", len(one)) + one for one in members)]


def policy_rows() -> list[bytes]:
    """Return a table of policies."""
    row = {"host": "h", "mix": "m", "policy": "p", "source": "s", "run_time_s": 1.0, "oracle_share": 0.5}
    return [json.dumps({"rows": [row, {**row, "policy": "none", "worst_guest_slowdown": 0.1}]}).encode()]


def scenario_tables(data: bytes) -> None:
    """Make the tables and the pictures' figures of a scenario's result."""
    result = report_scenario.parse_scenario_result(data, Path("x"))
    report_scenario._guest_table(result).of_known()
    report_scenario._manager_table(result).of_known()
    for picture in report_scenario._pictures(result):
        assert np.isfinite(picture.largest)


def scenario_figures() -> list[bytes]:
    """Return a result of two managers."""
    managers = {"none": manager(), "vmplace": manager(intact=False)}
    result = {"scenario": "s", "topology": "t", "nids": (0, 1), "managers": managers, "truth": {"a": "b"}}
    return [msgspec.json.encode(result)]


def captured(*paths: Path) -> Callable[[], list[bytes]]:
    """Return what reads these files."""
    return lambda: [path.read_bytes() for path in paths]


def first_lines(path: Path, count: int) -> Callable[[], list[bytes]]:
    """Return what reads the first lines of a file."""
    return lambda: [b"\n".join(path.read_bytes().split(b"\n")[:count])]


def just(*seeds: bytes) -> Callable[[], list[bytes]]:
    """Return what returns these."""
    return lambda: list(seeds)


XML = sorted(path for path in DOMAINS.glob("*.xml") if path.stem != "entity-bomb")


def handed_over(data: bytes) -> None:
    """Take a handover for granted: the packed one, as its text would be a code of it."""
    handover = parse_handover(base64.b64encode(data).decode())
    prior_pages(handover, HANDOVER_HOST, a_guest(1, 0), window(a_guest(1, 0), None, early=True))


def handovers() -> list[bytes]:
    """Return packed handovers."""
    reported = (handover_of_halves(halves(), 0, 1, early=early) for early in (False, True))
    return [msgspec.msgpack.encode(one) for one in reported]


TARGETS: Mapping[str, Target] = {
    "handover": Target(handed_over, handovers),
    "handover_text": Target(
        lambda data: parse_handover(text_of(data)),
        lambda: [base64.b64encode(one) for one in handovers()],
    ),
    "domain_policy": Target(lambda data: domain_policy(text_of(data)), captured(*XML)),
    "cpulist": Target(lambda data: parse_cpulist(text_of(data)), just(b"0-3,^2,8,10-11")),
    "maps": Target(
        lambda data: parse_maps(text_of(data)), just(b"7f000-8f000 rw-p 00000000 00:00 0  [heap]\n")
    ),
    "smaps": Target(guest_ram, first_lines(DOMAINS / "q35-3cells.smaps", 120)),
    "status": Target(
        lambda data: find_process_pin({}, parse_status(text_of(data)), [], 1 << 30), just(STATUS)
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
    "perf_header": Target(perf_header, captured(PERF / "two-vcpus.header.txt")),
    "perf_samples": Target(perf_samples, first_lines(PERF / "two-vcpus.samples.txt", 6)),
    "recording": Target(recording, recorded),
    "recording_frames": Target(frames, recorded_frames),
    "trace": Target(npz, traced),
    "trace_arrays": Target(arrays, traced_arrays),
    "config": Target(lambda data: parse_config(text_of(data), Path("x")), just(CONFIG)),
    "host_file": Target(
        lambda data: parse_host(text_of(data), name="x"), captured(*sorted(TOPOLOGIES.glob("n4*.toml")))
    ),
    "guest_option": Target(guest_option, just(b"vcpus=4,nodes=0+1,first_touch=0,priority=protected,mlp=2.5")),
    "calibration": Target(bandwidths, lambda: [msgspec.json.encode(calibration())]),
    "topology": Target(topology, captured(*sorted(TOPOLOGIES.glob("*.toml"))[:4])),
    "scenario": Target(
        lambda data: parse_scenario(text_of(data), source="x"),
        captured(*sorted(SCENARIOS.glob("*.toml"))[:3]),
    ),
    "report_policy": Target(
        lambda data: _summary(list(parse_policy_table(data, Path("x")).rows)), policy_rows
    ),
    "report_scenario": Target(scenario_tables, scenario_figures),
    "cgroup": Target(cgroup, just(b"0::/machine.slice/machine-qemu\\x2d7\\x2ddb1.scope/libvirt/emulator\n")),
    "policy_words": Target(domain_words, lambda: [domain_xml(WHOLE, {"mode": "auto"}).encode()]),
    "news": Target(datagram, just(b"1\0migrate\0begin\0-\0db1\0uuid")),
    "journal": Target(journal, lambda: [MAGIC + b"".join(map(framed, recorded_moves()))]),
    "journal_records": Target(journal_records, lambda: [b"\n--\n".join(recorded_moves())]),
    "protocol": Target(parse_request, just(b'{"version": 1, "command": "show", "guest": "a"}')),
}
"""By name: one row of the table that `make fuzz` prints."""


@cache
def corpus(name: str) -> Path:
    """Return the folder of inputs that are kept for a target."""
    return DATA / "fuzz" / name


def inputs(name: str) -> Iterator[bytes]:
    """Yield a target's seeds, then what fuzzing found and is kept."""
    yield from TARGETS[name].seeds()
    for path in sorted(corpus(name).glob("*")) if corpus(name).is_dir() else ():
        yield path.read_bytes()
