"""Runs inside the emulated host: processes that touch declared pages, and a source that watches them.

window SOURCE KIND PAGE_KIB FIRST:END...   touch pages [FIRST, END) in each of two windows, and nothing in a
                                           third; print per window the runs of pages that the source saw
nodes CPU:r|w:FIRST:END...                 in one window, have a vCPU on each CPU read or write pages; print
                                           by node what source "kvm" saw, after a window that nobody counts
places NID                                 move pages that nobody touches; print on which nodes "kvm" has them
                                           before, in the window after that, and once it was notified
rates FIRST_MS CPU:FIRST:END:PER_SECOND...   have a vCPU on each CPU touch each page so often, at random,
                                           and an agent watch; print by range what its page statistics hold
KIND is "process" (a child writes to its memory) or "kvm" (a vCPU writes to guest memory).
"""

import ctypes
import fcntl
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

sys.path.insert(0, "/opt/vmplace")

from vmplace import native
from vmplace.agent.config import LoadedConfig
from vmplace.agent.config_sections import Config, ReadingsSection
from vmplace.agent.discovered import Discovered
from vmplace.agent.loop import Agent
from vmplace.agent.no_actuator import NoActuator
from vmplace.agent.parts import Parts
from vmplace.agent.wakeup import Wakeup
from vmplace.model.pages import RangePages
from vmplace.model.touched_blocks import touched_pages
from vmplace.policy.plan import PlacementPlan
from vmplace.policy.registry import AUTO
from vmplace.sampling.page_arrays import unpacked
from vmplace.sampling.registry import SOURCES
from vmplace.sampling.source import PlaceKeeper, SourceSetup
from vmplace.topology.guest import GuestTopology, Movability, RamRange
from vmplace.topology.guest import Vcpu as GuestVcpu
from vmplace.topology.host import HostTopology
from vmplace.topology.procfs import read_start_time
from vmplace.topology.sysfs import read_host

NPAGES = 16384
KVM_CREATE_VM, KVM_CREATE_VCPU, KVM_GET_VCPU_MMAP_SIZE, KVM_RUN = 0xAE01, 0xAE41, 0xAE04, 0xAE80
KVM_SET_USER_MEMORY_REGION, KVM_SET_REGS = 0x4020AE46, 0x4090AE82
KVM_GET_SREGS, KVM_SET_SREGS, KVM_GET_TSC_KHZ = 0x8138AE83, 0x4138AE84, 0xAEA3
# loop: mov [esi], eax; add esi, edx; dec ecx; jnz loop; hlt
CODE = bytes.fromhex("89 06 01 d6 49 75 f9 f4")
# struct kvm_regs, before rip and rflags.
REGISTERS = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", *(f"r{i}" for i in range(8, 16)))

# DAMON learns regions in time, IBS samples now and then.
SLOW = ("damon", "ibs")
PAUSE_S = {"damon": 0.01, "ibs": 0}

Toucher = Callable[[int, int], None]


def memory(page_kib: int) -> int:
    """Map and fill 64 MiB of small or huge pages; return the address."""
    size = NPAGES * 4096
    area = mmap.mmap(-1, size + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE if page_kib == 4 else mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(area)) % (2 << 20)
    ram = np.frombuffer(area, np.uint8, size, start)
    ram[:] = 1
    memory.kept = (area, ram)  # type: ignore[attr-defined]
    return int(ram.ctypes.data)


def process_toucher(hva: int) -> Toucher:
    """Write to the pages from this process."""

    def touch(first: int, end: int) -> None:
        for page in range(first, end):
            ctypes.c_uint8.from_address(hva + 4096 * page).value = 2

    return touch


class Vcpu:
    """The one vCPU of a VM made of the memory at ``hva``, in 32-bit mode without paging."""

    def __init__(self, hva: int) -> None:
        kvm = os.open("/dev/kvm", os.O_RDWR)
        vm = fcntl.ioctl(kvm, KVM_CREATE_VM, 0)
        fcntl.ioctl(vm, KVM_SET_USER_MEMORY_REGION, struct.pack("IIQQQ", 0, 0, 0, NPAGES * 4096, hva))
        self._fd = fcntl.ioctl(vm, KVM_CREATE_VCPU, 0)
        self._run = mmap.mmap(self._fd, fcntl.ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0))
        sregs = bytearray(312)
        fcntl.ioctl(self._fd, KVM_GET_SREGS, sregs)
        # struct kvm_segment: base, limit, selector, type, present, dpl, db, s, l, g, avl, unusable, padding.
        code = struct.pack("QIHBBBBBBBBBB", 0, 0xFFFFFFFF, 8, 11, 1, 0, 1, 1, 0, 1, 0, 0, 0)
        data = struct.pack("QIHBBBBBBBBBB", 0, 0xFFFFFFFF, 16, 3, 1, 0, 1, 1, 0, 1, 0, 0, 0)
        sregs[: 24 * 6] = code + data * 5
        cr0 = 24 * 8 + 16 * 2
        struct.pack_into("Q", sregs, cr0, struct.unpack_from("Q", sregs, cr0)[0] | 1)
        fcntl.ioctl(self._fd, KVM_SET_SREGS, bytes(sregs))

    def execute(self, rip: int, **registers: int) -> None:
        """Run from ``rip`` with these registers, the others 0, to a HLT."""
        values = [registers.get(name, 0) for name in REGISTERS]
        fcntl.ioctl(self._fd, KVM_SET_REGS, struct.pack("18Q", *values, rip, 2))
        fcntl.ioctl(self._fd, KVM_RUN, 0)
        reason = struct.unpack_from("I", self._run, 8)[0]
        assert reason == 5, f"the vCPU left with reason {reason}, not by its HLT"

    def tsc_khz(self) -> int:
        """Return how fast its TSC runs."""
        return fcntl.ioctl(self._fd, KVM_GET_TSC_KHZ, 0)


def kvm_toucher(hva: int) -> Toucher:
    """Write to the pages from a vCPU; its code is in page 0."""
    vcpu = Vcpu(hva)
    ctypes.memmove(hva, CODE, len(CODE))

    def touch(first: int, end: int) -> None:
        vcpu.execute(0, rax=7, rcx=end - first, rdx=4096, rsi=first * 4096)

    return touch


TOUCHERS = {"process": process_toucher, "kvm": kvm_toucher}


def guest(source: str, kind: str, page_kib: int, orders: Connection) -> None:
    """Tell the address, then touch what is asked for."""
    hva = memory(page_kib)
    touch = TOUCHERS[kind](hva)
    orders.send(hva)
    while (ranges := orders.recv()) is not None:
        is_first = True
        # Once, or over and over until the next order waits.
        while is_first or (source in SLOW and not orders.poll(PAUSE_S[source])):
            for first, end in ranges:
                touch(first, end)
            if is_first:
                orders.send("done")
            is_first = False


def runs(pages: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> list[tuple[int, int]]:
    """Return the runs [first, end) of pages that are not 0."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], pages != 0, [0]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def stay_busy(seconds: float) -> None:
    """Wake up all the time, which has processes on this CPU switched out."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def window(source_name: str, kind: str, page_kib: str, *texts: str) -> None:
    """Print what the source saw in three windows."""
    # All on one CPU: the child is switched out each time it waits, and its TLB entries are gone then.  An
    # idle CPU would keep them, and touches through them set no accessed bit.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    ranges = [tuple(map(int, text.split(":"))) for text in texts]
    orders, theirs = Pipe()
    child = Process(target=guest, args=(source_name, kind, int(page_kib), theirs), daemon=True)
    child.start()
    hva, pid = orders.recv(), child.pid
    assert pid
    ram = RamRange(hva, NPAGES, None, 4096, Movability.MOVABLE, "test")
    topology = GuestTopology("test", pid, read_start_time(pid), "kvm", (), (ram,))
    source = SOURCES[source_name](SourceSetup(read_host()))
    seen = []
    for touched in (ranges, ranges, []):
        source.arm(topology)
        orders.send(touched)
        orders.recv()
        if source_name in SLOW:
            stay_busy(3)
        batch = source.harvest(topology)
        seen.append(runs(batch.ranges[0].accessed))
    sample = batch.ranges[0]
    source.close()
    nodes = {
        batch.nids[i]: int((sample.node_index == i).sum()) for i in set(sample.node_index.tolist()) if i >= 0
    }
    maps = Path(f"/proc/{pid}/numa_maps").read_text()
    print(json.dumps({"windows": seen, "huge": int(sample.huge.sum()), "nodes": nodes, "numa_maps": maps}))
    orders.send(None)
    child.join()


OPCODES = {"r": 0x8B, "w": 0x89}


def moving_guest(orders: Connection) -> None:
    """Tell the address, then run a vCPU on the CPU that is asked for to touch what is asked for."""
    hva = memory(4)
    touch = kvm_toucher(hva)
    touch(1, NPAGES)
    orders.send(hva)
    while (order := orders.recv()) is not None:
        cpu, kind, first, end = order
        os.sched_setaffinity(0, {cpu})
        ctypes.c_uint8.from_address(hva).value = OPCODES[kind]
        touch(first, end)
        orders.send("done")


def started_guest() -> tuple[Connection, Process, GuestTopology]:
    """Return a guest that moves from CPU to CPU on command."""
    orders, theirs = Pipe()
    child = Process(target=moving_guest, args=(theirs,), daemon=True)
    child.start()
    hva, pid = orders.recv(), child.pid
    assert pid
    ram = RamRange(hva, NPAGES, None, 4096, Movability.MOVABLE, "test")
    return orders, child, GuestTopology("test", pid, read_start_time(pid), "kvm", (), (ram,))


def nodes(*texts: str) -> None:
    """Print the runs of pages that each node accessed and wrote."""
    words = [text.split(":") for text in texts]
    orders, child, topology = started_guest()
    source = SOURCES["kvm"](SourceSetup(read_host()))
    for _ in range(2):
        source.arm(topology)
        for cpu, kind, first, end in words:
            orders.send((int(cpu), kind, int(first), int(end)))
            orders.recv()
        batch = source.harvest(topology)
    bits = batch.ranges[0].by_node
    assert bits is not None and bits.written is not None
    reported = [
        {nid: runs(unpacked(rows[at], NPAGES)) for at, nid in enumerate((*batch.nids, -1)) if rows[at].any()}
        for rows in (bits.accessed, bits.written)
    ]
    source.close()
    print(json.dumps({"accessed": reported[0], "written": reported[1]}))
    orders.send(None)
    child.join()


def places(nid: str) -> None:
    """Print the nodes of 512 untouched pages: at first, once they moved, and once the source was notified."""
    orders, child, topology = started_guest()
    source = SOURCES["kvm"](SourceSetup(read_host()))
    assert isinstance(source, PlaceKeeper)
    pages = slice(5 * 512, 6 * 512)
    hvas = np.arange(pages.start, pages.stop, dtype=np.uint64) * np.uint64(4096)
    hvas += np.uint64(topology.ram[0].hva)

    def seen() -> list[int]:
        source.arm(topology)
        batch = source.harvest(topology)
        return sorted({batch.nids[index] for index in batch.ranges[0].node_index[pages]})

    # The first window looks all up, the second what its turn is: all of so small a range.
    reported = [seen() for _ in range(3)][-1:]
    status = np.zeros(len(hvas), np.int32)
    native.move_pages(topology.pid, hvas, np.full(len(hvas), int(nid), np.int32), status)
    reported.append(seen())
    source.moved(topology, hvas)
    reported.append(seen())
    source.close()
    print(json.dumps({"moved": int((status == int(nid)).sum()), "nodes": reported}))
    orders.send(None)
    child.join()


WINDOW_MS, WINDOWS = 8000, 5
TOGETHER = 8
"""Pages that are touched together, so that the emulated host keeps up."""


@dataclass(frozen=True)
class Stream:
    """A CPU that touches each of the pages so often, at random times."""

    cpu: int
    first: int
    end: int
    per_second: float

    def touches(self, seconds: float, chance: np.random.Generator) -> list[tuple[float, int, int]]:
        """Return when which pages, from the one on, are touched by which CPU."""
        due = []
        for first in range(self.first, self.end, TOGETHER):
            times = np.cumsum(chance.exponential(1 / self.per_second, int(seconds * self.per_second * 2) + 9))
            due += [(float(at), first, self.cpu) for at in times if at < seconds]
        return due


def busy_guest(streams: list[Stream], orders: Connection) -> None:
    """Tell the address, then touch what the streams say until asked to stop; tell how late it was."""
    hva = memory(4)
    touch = kvm_toucher(hva)
    touch(1, NPAGES)
    chance, late_s, cpu_now = np.random.default_rng(1), 0.0, -1
    due = sorted(event for one in streams for event in one.touches(2 * WINDOWS * WINDOW_MS / 1000, chance))
    orders.send(hva)
    orders.recv()
    started = time.monotonic()
    for due_s, first, cpu in due:
        if orders.poll(max(0.0, due_s - (time.monotonic() - started))):
            break
        if cpu != cpu_now:
            os.sched_setaffinity(0, {cpu})
            cpu_now = cpu
        touch(first, first + TOGETHER)
        late_s = max(late_s, time.monotonic() - started - due_s)
    orders.send(late_s)


class OneGuest:
    """A host with one guest, as the agent looks at it."""

    def __init__(self, topology: GuestTopology) -> None:
        self._topology = topology

    def host(self) -> HostTopology:
        return read_host()

    def guests(self) -> Discovered:
        return Discovered((self._topology,))

    def has_news(self) -> bool:
        return False

    def look_again(self, *, asking: bool = False) -> None:
        pass


def watched_by_agent(topology: GuestTopology, first_ms: int) -> RangePages:
    """Return the statistics of an agent that reads bits so early, or once a window for 0."""
    config = Config(
        window_ms=WINDOW_MS,
        shortest_window_ms=WINDOW_MS,
        longest_rest_ms=0,
        readings=ReadingsSection(first_ms, 0.5),
    )
    source = SOURCES["kvm"](SourceSetup(read_host()))
    parts = Parts(OneGuest(topology), source, lambda _snapshot: PlacementPlan(), AUTO, NoActuator())
    agent = Agent(LoadedConfig(config), parts, Wakeup())
    agent.run(windows=WINDOWS)
    (tracked,) = agent.roster
    assert tracked.pages, tracked.problem
    return tracked.pages.ranges[0]


def touches_of(pages: RangePages, nodes: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Return how much each node touches each page [node, page]: the rate, else the windows with touches."""
    touched = touched_pages(pages)
    assert touched
    sizes = touched.sizes
    entry = np.repeat(np.arange(len(sizes)), sizes)
    inside = np.arange(len(entry)) - (np.cumsum(sizes) - sizes)[entry]
    page = (touched.hva_of(entry) - pages.ram.hva) // 4096 + inside
    reported = np.zeros((nodes, pages.ram.npages))
    for node in range(nodes):
        rate = touched.rate_of(node)
        reported[node, page] = (touched.touches[node] if rate is None else rate)[entry]
    return reported


def rates(first_ms: str, *texts: str) -> None:
    """Print by stream: the heat of its pages, by page, and what each node does to them, on average."""
    words = [text.split(":") for text in texts]
    streams = [Stream(int(cpu), int(first), int(end), float(rate)) for cpu, first, end, rate in words]
    orders, theirs = Pipe()
    child = Process(target=busy_guest, args=(streams, theirs), daemon=True)
    child.start()
    hva, pid = orders.recv(), child.pid
    assert pid
    ram = RamRange(hva, NPAGES, None, 4096, Movability.MOVABLE, "test")
    vcpus = tuple(GuestVcpu(i, pid, (one.cpu,)) for i, one in enumerate(streams))
    topology = GuestTopology("test", pid, read_start_time(pid), "kvm", vcpus, (ram,))
    orders.send("go")
    pages = watched_by_agent(topology, int(first_ms))
    orders.send("stop")
    reported = touches_of(pages, len(read_host().nids))
    parts = [slice(one.first, one.end) for one in streams]
    heat = reported.sum(axis=0) if pages.rate else pages.part(0, NPAGES)[0].astype(np.float64)
    print(json.dumps({
        "heat": [heat[part].tolist() for part in parts],
        "by_node": [reported[:, part].mean(axis=1).tolist() for part in parts],
        "late_s": orders.recv(),
    }))  # fmt: skip
    child.join()


if __name__ == "__main__":
    commands: tuple[Callable[..., None], ...] = (window, nodes, rates, places)
    {command.__name__: command for command in commands}[sys.argv[1]](*sys.argv[2:])
