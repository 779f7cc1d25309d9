"""What the agent reads of another process, or calls for it, may wait for ever: so it is bounded.

Three readings by enemies each found such a wait.  So all places where one can begin are listed here (a new
one fails a test), and a pass comes by them, in which each access is seen, and by which thread.
"""

import contextlib
import io
import logging
import mmap
import os
import shutil
import socket
import subprocess
import threading
import types
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit import process_accesses
from tests.unit.nobody import NOBODY
from tests.unit.process_accesses import NEVER_WAITS, OF_HOST, OF_PROCESS, Accesses
from vmplace import counting, held, left_behind, native
from vmplace.actuation.affinity import read_cpus, read_thread_start, set_cpus
from vmplace.actuation.identity import has_ended, read_identity
from vmplace.cloud.kubernetes.pods import qemu_by_pod
from vmplace.errors import VmplaceError
from vmplace.held import Held
from vmplace.left_behind import NAME
from vmplace.sampling.counters_perf import PerfCounters
from vmplace.sampling.cpu_waits import CpuWaits
from vmplace.sampling.page_frames import FrameReader
from vmplace.step_thread import Job
from vmplace.topology.capabilities import probe_numad
from vmplace.topology.capability import Roots
from vmplace.topology.damon import begun_at
from vmplace.topology.description import GuestDescription
from vmplace.topology.guest import GuestTopology, Vcpu
from vmplace.topology.guest_finder import GuestFinder
from vmplace.topology.guests_libvirt import Libvirt, LibvirtAnswer
from vmplace.topology.placement import Placement, open_placement
from vmplace.topology.procfs import read_cpu_seconds

PASSED = "the pass comes by"
CALLED = "given to Placement.call, which is bounded"
OWN = "of this process, or a child of its own"
HOST = "of the host"
KDAMOND = "of a thread of the kernel; bounded, as another process may have its pid by now"
PLACES = {
    "actuation/affinity.py:read_cpus": PASSED,
    "actuation/affinity.py:set_cpus": PASSED,
    "actuation/gfn_kernel.py:GfnKernel._call": CALLED,
    "actuation/identity.py:read_boot_id": HOST,
    "actuation/identity.py:read_pid_namespace": OWN,
    "actuation/identity.py:read_start_time": PASSED,
    "actuation/journal.py:Journal._reading_proc": HOST,
    "actuation/ownership.py:read_sysctl": HOST,
    "actuation/ownership.py:write_sysctl": HOST,
    "actuation/replica_calls.py:ask_kvm": CALLED,
    "agent/cost.py:rss_bytes": OWN,
    "apart.py:Process.__init__": OWN,
    "left_behind.py:_iter_left_behind": PASSED,
    "left_behind.py:_may_have_run_program": PASSED,
    "left_behind.py:_runs_program": PASSED,
    "held.py:Held.probe.read": PASSED,
    "held.py:_uid_of": PASSED,
    "interfaces/calibrate_command.py:_measured": OWN,
    "interfaces/supervisor.py:_end_as": OWN,
    "interfaces/supervisor.py:_leader": OWN,
    "interfaces/supervisor.py:_wait_status": OWN,
    "sampling/cpu_waits.py:CpuWaits._times": PASSED,
    "sampling/damon_admin.py:DamonAdmin.is_held_up": KDAMOND,
    "sampling/damon_trace.py:RegionTrace.__init__": KDAMOND,
    "sampling/dram_events.py:dram_events": HOST,
    "sampling/hint_ring.py:HintRing.__init__": CALLED,
    "sampling/hint_ring.py:HintRing._switch_off": CALLED,
    "sampling/page_frames.py:FrameReader._frame_of": OWN,
    "sampling/page_frames.py:FrameReader._probe_pfns": OWN,
    "sampling/page_frames.py:FrameReader.opened": PASSED,
    "sampling/page_frames.py:FrameReader.own_frames": OWN,
    "sampling/page_frames.py:FrameReader.read": PASSED,
    "sampling/page_frames.py:_open_kpageflags": HOST,
    "sampling/perf_rings.py:PerfRings._add": "events of CPUs",
    "sampling/perf_rings.py:PerfRings.control": "events of CPUs",
    "sampling/source_ibs.py:IbsSource.__init__": HOST,
    "sampling/source_kvm.py:KvmSource._give_roots": CALLED,
    "sampling/source_kvm.py:_harvested": CALLED,
    "sampling/source_kvm.py:_stop": CALLED,
    "step_thread.py:Worker.__init__": OWN,
    "thread_waits.py:ThreadTimes.__init__": OWN,
    "topology/calibration.py:read_machine_identity": HOST,
    "topology/capabilities.py:probe_move_permission": OWN,
    "topology/capabilities.py:probe_numa_balancing": HOST,
    "topology/counter_capabilities.py:probe_cycle_counters": OWN,
    "topology/counter_capabilities.py:probe_ibs": OWN,
    "topology/guests_kvm.py:KvmProcesses._stats": PASSED,
    "topology/memory_budget.py:_group_limits": OWN,
    "topology/numad.py:_is_numad": "_runs_as_root reads it, which the pass comes by",
    "topology/placement.py:Placement.info": CALLED,
    "topology/placement.py:_opened": PASSED,
    "topology/placement.py:_statistics": CALLED,
    "topology/placement.py:probe_features": "a VM of its own",
    "topology/procfs.py:_read.read": PASSED,
    "topology/procfs.py:_read_descriptors": "_first_names lists it, which the pass comes by",
    "topology/procfs.py:iter_pids": "the list of processes: tasklist by RCU",
    "topology/procfs.py:read_guest_ticks": PASSED,
    "topology/procfs.py:read_thread_names": PASSED,
    "topology/resident.py:_scan": "_scanned opens what it asks, which the pass comes by",
    "topology/resident.py:_scanned": PASSED,
    "topology/sampling_capabilities.py:probe_kpageflags": HOST,
    "topology/sampling_capabilities.py:probe_pagemap": OWN,
    "topology/vcpus.py:_ask_waiting_threads": PASSED,
}
OWN_BY_NAME = "left_behind.py:_ended.has_ended"
"""Asked while nobody else may ask, so it is not bounded.  It reads no more of what acts for another user, or
has not the name of an agent's process."""


class OneDomain(Libvirt):
    """A libvirt that runs one domain, without a file of its pid."""

    def __init__(self) -> None:
        self.domains = {UUID: GuestDescription("db1", uuid=UUID)}

    def read(self, uuids: frozenset[str] = frozenset()) -> LibvirtAnswer:
        """Tell of it."""
        return LibvirtAnswer(self.domains)


UUID = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0"
FIRST = 1 << 22
"""The kernel gives no pid from here on (PID_MAX_LIMIT)."""
GUEST, NUMAD, USERS_NUMAD, LEFT, USERS_LEFT, IDLE, HELD_UP, EXITS = range(FIRST, FIRST + 8)
POD = "0b1c2d3e-0000-1111-2222-333344445555"
CGROUP = f"0::/machine.slice/machine-qemu\\x2d7\\x2ddb1.scope/kubepods-pod{POD.replace('-', '_')}.slice\n"


def put(proc: Path, pid: int, name: str, runs: str, uid: int = 0, parent: int = 1) -> Path:
    """Make a process that has what all have."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} {' '.join(['0'] * 17)} 500 {'0 ' * 30}\n")
    (folder / "status").write_text(
        f"Name:\t{name}\nUid:\t{uid} {uid} {uid} {uid}\nVmRSS:\t8 kB\nCpus_allowed_list:\t0\n"
    )
    (folder / "cmdline").write_text(f"{name}\0")
    (folder / "exe").symlink_to(runs)
    (folder / "cgroup").write_text(CGROUP)
    for path in (folder, *folder.iterdir()):
        os.chown(path, uid if os.geteuid() == 0 else -1, -1, follow_symlinks=False)
    return folder


def put_guest(proc: Path) -> None:
    """Make a guest of 8 GiB that names no thread."""
    folder = put(proc, GUEST, "qemu-system-x86", "/usr/bin/qemu")
    (folder / "cmdline").write_text(f"qemu-system-x86_64\0-uuid\0{UUID}\0-name\0guest=db1\0-m\08192\0")
    for fd, target in {9: "anon_inode:kvm-vm", 10: "anon_inode:kvm-vcpu:0"}.items():
        (folder / f"fd/{fd}").symlink_to(target)
    head = "7f0000000000-7f0200000000 rw-p 00000000 00:00 0 \n"
    (folder / "maps").write_text(head)
    (folder / "smaps").write_text(f"{head}KernelPageSize:        4 kB\nVmFlags: rd wr mr mw me dc\n")
    (folder / "pagemap").touch()
    for tid in (GUEST, GUEST + 50):
        thread = folder / f"task/{tid}"
        thread.mkdir(parents=True)
        (thread / "schedstat").write_text("1 1 1\n")
        for name in ("comm", "stat", "status"):
            shutil.copy(folder / name, thread)
        (thread / "syscall").write_text("16 0xa 0xae80 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n")


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[Path]:
    proc = tmp_path / "proc"
    put_guest(proc)
    put(proc, NUMAD, "numad", "/usr/bin/numad")
    put(proc, USERS_NUMAD, "numad", "/usr/bin/numad", NOBODY)
    put(proc, LEFT, f"{NAME}{HELD_UP}", str(native.APART))
    put(proc, USERS_LEFT, f"{NAME}1", str(native.APART), NOBODY)
    (put(proc, EXITS, f"{NAME}1", str(native.APART)) / "exe").unlink()
    put(proc, IDLE, "bash", "/bin/bash", NOBODY)
    (proc / "self").symlink_to("/proc/self")
    (proc / "kpageflags").touch()
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("one\n")
    yield proc
    # What was left behind has ended.
    shutil.rmtree(proc)
    held.keep(set())
    counting.close()


def look(proc: Path) -> GuestTopology:
    """Look for guests, twice: the first time all is new."""
    finder = GuestFinder(OneDomain(), proc=proc, debugfs=proc.with_name("debug"), run=proc.with_name("run"))
    for _ in range(2):
        (guest,) = finder.find().guests
    finder.holds(guest)
    assert guest.origin == "libvirt" and guest.vcpus
    return guest


def do_all(proc: Path) -> None:
    """Do once, of a host with these processes, what the agent does of others."""
    guest = look(proc)
    root = proc.parent
    (root / "run").mkdir(exist_ok=True)
    probe_numad(Roots(proc=proc, root=root))
    left_behind.note_left_behind(proc, patience_s=0.0)
    assert held.holds(HELD_UP)
    has_ended(read_identity(guest, proc), proc)
    read_thread_start(GUEST, GUEST, proc)
    begun_at(str(IDLE), proc)
    read_cpu_seconds(guest.pid, proc)
    qemu_by_pod(proc)
    held_by_tree = Held(proc)
    held_by_tree.probe(GUEST)
    held_by_tree.note_waits(GUEST, 0.1)
    with contextlib.suppress(VmplaceError):
        open_placement(guest, proc)
    for call in (lambda: read_cpus(GUEST), lambda: set_cpus(GUEST, {0})):
        with contextlib.suppress(VmplaceError):
            call()
    PerfCounters([GUEST], {"cycles": (0, 0)}, pid=GUEST).close()
    CpuWaits(proc, root / "sys").ratio(replace(guest, vcpus=(Vcpu(0, GUEST, (0, 1)),)))
    with (
        contextlib.suppress(VmplaceError),
        contextlib.closing(FrameReader(proc)) as frames,
        frames.opened(guest) as pagemap,
    ):
        frames.read(pagemap, guest.ram[0], 0, 1)


def unbounded(accesses: Accesses) -> set[tuple[str, str]]:
    """Return what may wait and is done outside of steps that are bounded."""
    return {
        (one.call, one.name)
        for one in accesses.seen
        if not one.is_bounded and (one.call, one.name) not in NEVER_WAITS and OWN_BY_NAME not in one.functions
    }


@pytest.fixture
def accesses(proc: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accesses]:
    with process_accesses.collected(proc, monkeypatch) as accesses:
        yield accesses


def test_what_may_wait_for_a_process_is_bounded(proc: Path, accesses: Accesses):
    do_all(proc)
    assert unbounded(accesses) == set()
    # No more is let off than is needed.
    assert set(NEVER_WAITS) <= {(one.call, one.name) for one in accesses.seen if not one.is_bounded}


def test_the_pass_comes_by_all_places_that_the_text_has(proc: Path, accesses: Accesses):
    do_all(proc)
    functions = {function for one in accesses.seen for function in one.functions}
    assert {place for place, why in PLACES.items() if why == PASSED} - functions == set()


@pytest.mark.slow
def test_each_place_that_reads_of_a_process_or_calls_for_it_is_listed():
    """Say in PLACES what a new one is of; of another process: have do_all come by it."""
    found = process_accesses.places()
    assert {place: found.get(place) for place in found.keys() ^ PLACES.keys()} == {}


def test_each_call_of_the_c_core_that_could_wait_is_known():
    computing = {name for name in native.__all__ if name.startswith(("place_", "rows_", "touch_rate_"))}
    computing |= {"APART", "learn_shares", "queue_length", "windows_marks"}
    assert set(native.__all__) == computing | OF_HOST | OF_PROCESS


def test_what_is_called_on_a_placement_is_bounded():
    placement = Placement(os.open(os.devnull, os.O_RDONLY), pid=GUEST)
    assert placement.call(lambda _: threading.current_thread().name) == "step"
    placement.close()


OWNERS = (io.IOBase, socket.socket, mmap.mmap, subprocess.Popen, type(os.scandir("/")))
"""What closes a descriptor when it is freed."""


def held_objects(step: object) -> Iterator[object]:
    """Yield what goes with a step: in its closure, its arguments, and what those hold in turn."""
    todo, seen = [step], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | threading.Thread | logging.Logger):
            continue
        seen.add(id(one))
        yield one
        match one:
            case types.FunctionType():
                todo += [cell.cell_contents for cell in one.__closure__ or ()]
            case partial():
                todo += [one.func, *one.args, *one.keywords.values()]
            case types.MethodType():
                todo += [one.__self__, one.__func__]
            case dict():
                todo += [*one.keys(), *one.values()]
            case list() | tuple() | set() | frozenset():
                todo += one
            case _:
                todo += getattr(one, "__dict__", {}).values()


def numbers() -> set[int]:
    """Return which descriptors the calling thread has open."""
    found = set()
    for fd in range(64):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            found.add(fd)
    return found


def test_no_step_leaves_a_descriptor_open_nor_goes_with_what_closes_one(
    proc: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its thread has a file table of its own (step_thread.py): a number there is another file elsewhere."""
    wrong: list[str] = []
    begun: list[object] = []
    run = Job.run

    def watched(job: "Job[Any]", *rest: Any) -> None:
        (step,) = job._steps
        begun.append(step)
        wrong.extend(f"{step} holds {one}" for one in held_objects(step) if isinstance(one, OWNERS))
        before = numbers()
        run(job, *rest)
        if numbers() != before:
            wrong.append(f"{step} leaves {numbers() ^ before}")

    monkeypatch.setattr(Job, "run", watched)
    do_all(proc)
    assert wrong == [] and len(begun) > 20


def test_without_bounds_all_that_may_wait_is_found(
    proc: Path, accesses: Accesses, monkeypatch: pytest.MonkeyPatch
):
    for name in ("bounded", "opened"):
        monkeypatch.setattr(held, name, lambda _pid, step: step())
    monkeypatch.setattr(held, "bounded_on", lambda _pid, fd, step: step(fd))
    do_all(proc)
    files = {"cmdline", "exe", "maps", "pagemap", "smaps", "stat", "status", "task/*/stat", "task/*/status"}
    assert unbounded(accesses) == {
        *(("open", name) for name in files | {"task/*/syscall"} if name != "exe"),
        ("readlink", "exe"),
        ("stat", "exe"),
        ("readlink", "fd/*"),
        ("scandir", "fd"),
        ("read_pagemap", "pagemap"),
        ("placement_open", ""),
    }
