"""Runs inside the emulated host: a VM with replicas, and what would like to take them away; prints JSON.

pressure    a process takes most of memory, then 8 MiB a step, until the host has swapped for a while
ksm         KSM merges the VM's pages, all of them alike, before there are replicas, then with them
balancing   automatic NUMA balancing, which marks the VM's pages before they get replicas, and goes on

The VM is in a memory cgroup of its own: what replicas take is the growth of its kernel memory there.
"""

import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import numpy as np

sys.path.insert(0, "/opt/vmplace")

from vmplace import native
from vmplace.topology.guest import GuestTopology, Movability, RamRange
from vmplace.topology.placement import open_placement
from vmplace.topology.procfs import read_start_time
from vmplace.topology.sysfs import read_host

inside = import_module("sampling_inside")

NPAGES = inside.NPAGES
CGROUP = Path("/sys/fs/cgroup/replicas")
SWAP_FILE, SWAP_MIB = "/var/swap", 256
LEFT_BYTES, STEP_BYTES = 512 << 20, 8 << 20
SET_MEMPOLICY, MPOL_BIND = 238, 2
"""<asm/unistd_64.h>, <linux/mempolicy.h>."""
BALANCING = Path("/sys/kernel/debug/sched/numa_balancing")
BALANCING_SWITCH = Path("/proc/sys/kernel/numa_balancing")
BALANCED_S = 6.0
MARKS_TIMEOUT_S, SPIN_S = 120.0, 5.0
SWAPPED_STEPS = 8
"""Steps that the host goes on swapping for."""
TRIES = 3
KSM = Path("/sys/kernel/mm/ksm")
SCANS, SCANS_S = 4, 120
WRITTEN = 7
"""What the vCPU writes to each page."""


class Vm:
    """A VM of NPAGES small pages, all of them written by its vCPU; page 0 holds its code."""

    def __init__(self) -> None:
        CGROUP.mkdir(exist_ok=True)
        (CGROUP / "cgroup.procs").write_text(str(os.getpid()))
        self.hva = inside.memory(4)
        self._touch = inside.kvm_toucher(self.hva)
        ram = RamRange(self.hva, NPAGES, 0, 4096, Movability.MOVABLE, "test")
        guest = GuestTopology("test", os.getpid(), read_start_time(os.getpid()), "kvm", (), (ram,))
        self._placement = open_placement(guest)
        self._cpus = {node.nid: node.cpus[0] for node in read_host().nodes if node.cpus}
        self._nodes = sum(1 << nid for nid in self._cpus)
        self._before = 0
        self._touch(1, NPAGES)
        ctypes.c_uint8.from_address(self.hva).value = inside.OPCODES["r"]

    def read(self) -> None:
        """Have the vCPU read all pages on each node."""
        for cpu in self._cpus.values():
            os.sched_setaffinity(0, {cpu})
            self._touch(1, NPAGES)

    def roots(self, *, on: bool) -> None:
        """Give each node a root, or take them away."""
        native.placement_roots(self._placement.fd, self._nodes if on else 0, True)

    def replicate(self) -> int:
        """Have a copy of each page on each node; return of how many pages there is one."""
        self._before = kernel_bytes()
        done, status = np.zeros(1, np.int32), np.zeros(1, np.int32)
        gfns, count = np.array([1], np.uint64), np.array([NPAGES - 1], np.int32)
        for _ in range(TRIES):
            # Those in another CPU's LRU batch are busy.
            native.drain_lru()
            native.placement_replicate(self._placement.fd, self._nodes, gfns, count, done, status)
            # A page that NUMA balancing has marked is busy until it is used.
            self.read()
        return int(done[0])

    def statuses(self) -> dict[int, int]:
        """Ask for copies page by page; return how many pages got which answer."""
        gfns, ones = np.arange(1, NPAGES, dtype=np.uint64), np.ones(NPAGES - 1, np.int32)
        done, status = np.zeros_like(ones), np.full_like(ones, -1)
        native.placement_replicate(self._placement.fd, self._nodes, gfns, ones, done, status)
        codes, counts = np.unique(status, return_counts=True)
        return dict(zip(codes.tolist(), counts.tolist(), strict=True))

    def replica_mib(self) -> float:
        """Return what the replicas take, by the cgroup's account."""
        return (kernel_bytes() - self._before) / 2**20

    def is_intact(self) -> bool:
        """Tell whether the VMM sees on each page what the vCPU wrote."""
        ram = (ctypes.c_uint8 * (NPAGES * 4096)).from_address(self.hva)
        return bool((np.frombuffer(ram, np.uint8)[4096::4096] == WRITTEN).all())


def merge_alike() -> int:
    """Let KSM look at all pages a few times, then rest; return how many are saved."""
    settings = {"sleep_millisecs": 10, "pages_to_scan": NPAGES, "max_page_sharing": NPAGES}
    for name, value in settings.items():
        (KSM / name).write_text(str(value))
    (KSM / "run").write_text("1")
    wanted, ends = int((KSM / "full_scans").read_text()) + SCANS, time.monotonic() + SCANS_S
    while int((KSM / "full_scans").read_text()) < wanted and time.monotonic() < ends:
        time.sleep(0.1)
    (KSM / "run").write_text("0")
    return int((KSM / "pages_sharing").read_text())


def kernel_bytes() -> int:
    """Return the kernel memory charged to the cgroup."""
    lines = (CGROUP / "memory.stat").read_text().splitlines()
    return int(dict(line.split() for line in lines)["kernel"])


def counted(name: str) -> int:
    """Return a counter of /proc/vmstat."""
    return int(dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())[name])


def swapped() -> tuple[int, int]:
    """Return how many pages were swapped in and out since boot."""
    return counted("pswpin"), counted("pswpout")


def available_bytes(node: int) -> int:
    """Return the memory of a node that can be had without swapping, or nearly so: what is free, and files."""
    lines = Path(f"/sys/devices/system/node/node{node}/meminfo").read_text().splitlines()
    kib = {name.rstrip(":"): int(value) for _, _, name, value, *_ in map(str.split, lines)}
    return (kib["MemFree"] + kib["FilePages"]) * 1024


def hog(orders: Connection, node: int) -> None:
    """Take so many bytes of the node's memory at each order, outside of the VM's cgroup."""
    Path("/sys/fs/cgroup/cgroup.procs").write_text(str(os.getpid()))
    Path("/proc/self/oom_score_adj").write_text("1000")
    mask = ctypes.c_ulong(1 << node)
    if ctypes.CDLL(None).syscall(SET_MEMPOLICY, MPOL_BIND, ctypes.byref(mask), 64):
        raise OSError("set_mempolicy() failed")
    taken = []
    while size := orders.recv():
        taken.append(np.ones(size, np.uint8))
        orders.send("done")


def add_swap() -> None:
    """Give the host somewhere to swap to."""
    size = ["fallocate", "-l", f"{SWAP_MIB}M", SWAP_FILE]
    for argv in (size, ["chmod", "600", SWAP_FILE], ["mkswap", "-q", SWAP_FILE], ["swapon", SWAP_FILE]):
        subprocess.run(argv, check=True)


def pressure() -> None:
    """Print [MiB taken, MiB of replicas, pages swapped in, pages swapped out] by step, and what was.

    Copies go where memory is short, so what is taken is memory of their node.
    """
    add_swap()
    first, last = first_and_last()
    node = next(node.nid for node in read_host().nodes if last in node.cpus)
    os.sched_setaffinity(0, {first})
    # Before there are replicas: a fork write-protects all memory, and they would go.
    orders, theirs = Pipe()
    child = Process(target=hog, args=(theirs, node), daemon=True)
    child.start()
    vm = Vm()
    vm.roots(on=True)
    replicated = vm.replicate()
    start_in, start_out = swapped()
    steps: list[tuple[float, float, int, int]] = []
    size, taken = available_bytes(node) - LEFT_BYTES, 0
    while sum(out > 0 for *_, out in steps) < SWAPPED_STEPS:
        orders.send(size)
        orders.recv()
        taken, size = taken + size, STEP_BYTES
        now_in, now_out = swapped()
        steps.append((taken / 2**20, vm.replica_mib(), now_in - start_in, now_out - start_out))
    child.kill()
    child.join()
    vm.read()
    print(json.dumps({"replicated": replicated, "steps": steps, "intact": vm.is_intact()}))


def ksm() -> None:
    """Print what KSM saved, what answers KVM gave, and whether all is as the vCPU wrote it."""
    vm = Vm()
    area, _ = inside.memory.kept
    area.madvise(mmap.MADV_MERGEABLE)
    vm.roots(on=True)
    seen: dict[str, object] = {"merged_first": merge_alike(), "statuses": vm.statuses()}
    vm.read()
    seen["intact_merged"] = vm.is_intact()
    (KSM / "run").write_text("2")
    seen["replicated"] = vm.replicate()
    seen["merged_with_replicas"] = merge_alike()
    vm.read()
    seen["intact_replicated"] = vm.is_intact()
    seen["replica_mib"] = vm.replica_mib()
    print(json.dumps(seen))


def start_balancing() -> None:
    """Have it scan all of a process twenty times a second."""
    for name, value in {"scan_delay_ms": 10, "scan_period_min_ms": 50}.items():
        (BALANCING / name).write_text(str(value))
    BALANCING_SWITCH.write_text("1")


def first_and_last() -> tuple[int, int]:
    """Return a CPU of the first node and one of the last."""
    first, *_, last = (node.cpus[0] for node in read_host().nodes if node.cpus)
    return first, last


def await_marks(until: int) -> None:
    """Keep a CPU busy until so many pages were marked since boot: only who runs is scanned.

    A thread whose scan took long is left alone for 32 times as long (task_numa_work(), kernel/sched/fair.c),
    so another one takes over now and then.
    """
    deadline = time.monotonic() + MARKS_TIMEOUT_S
    while counted("numa_pte_updates") < until:
        if time.monotonic() > deadline:
            raise TimeoutError("NUMA balancing marks nothing")
        thread = Thread(target=spin, args=(until,))
        thread.start()
        thread.join()


def spin(until: int) -> None:
    """Do nothing for a while, or until so many pages were marked."""
    end = time.monotonic() + SPIN_S
    while counted("numa_pte_updates") < until and time.monotonic() < end:
        pass


def misplaced(orders: Connection) -> None:
    """At an order, use memory of the first node on the last one."""
    first, last = first_and_last()
    os.sched_setaffinity(0, {first})
    memory = np.ones(NPAGES * 4096, np.uint8)
    orders.recv()
    os.sched_setaffinity(0, {last})
    while True:
        memory[::4096] += 1


def balancing() -> None:
    """Print how many pages had replicas, MiB of those at first and later, pages of others that were moved."""
    # On from the start, it would look ever more seldom at a task in which it finds nothing to do.
    BALANCING_SWITCH.write_text("0")
    # Before there are replicas: a fork write-protects all memory, and they would go.
    orders, theirs = Pipe()
    child = Process(target=misplaced, args=(theirs,), daemon=True)
    child.start()
    os.sched_setaffinity(0, {first_and_last()[0]})
    vm = Vm()
    # Memory of a single thread is marked only if that runs on another node (change_pte_range() in
    # mm/mprotect.c).
    os.sched_setaffinity(0, {first_and_last()[1]})
    # Counted before it starts: a page is marked once, at the first tick on a slow machine.
    marked = counted("numa_pte_updates") + NPAGES
    start_balancing()
    await_marks(marked)
    vm.roots(on=True)
    replicated = vm.replicate()
    at_first, moved = vm.replica_mib(), counted("numa_pages_migrated")
    orders.send("go")
    end = time.monotonic() + BALANCED_S
    while time.monotonic() < end:
        vm.read()
    later, moved = vm.replica_mib(), counted("numa_pages_migrated") - moved
    BALANCING_SWITCH.write_text("0")
    child.kill()
    child.join()
    seen = {"replicated": replicated, "mib": [at_first, later], "moved": moved, "intact": vm.is_intact()}
    print(json.dumps(seen))


if __name__ == "__main__":
    COMMANDS: dict[str, Callable[[], None]] = {"pressure": pressure, "ksm": ksm, "balancing": balancing}
    COMMANDS[sys.argv[1]]()
