"""Inside the emulated host: how long placement keeps others from locks, by size of the VM; prints JSON.

usage: python3 -m bench.kvm_holds mapped|replicated MIB

All of the VM's memory is mapped by small pages.  A figure is the longest wait of a vCPU's fault for mmu_lock,
of mmap(2) for mmap_lock, and of a change of a small memslot for slots_lock, while something is done to all of
the memory: the least of some rounds, as the emulated CPU that holds a lock may itself be made to wait.
Beside it is what 99 of 100 waits of that round are shorter than.
The control is the same with the smallest size; what is waited while nothing is done stands beside it.
"""

import ctypes
import fcntl
import json
import math
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.kvm_vm import CPU_OF_NODE, NODES, BenchVm, inside, this_guest
from bench.kvm_waits import (
    KVM_PRE_FAULT_MEMORY,
    KVM_SET_USER_MEMORY_REGION,
    LOG_DIRTY_PAGES,
    LockTakers,
    Waits,
)
from vmplace import native
from vmplace.topology.guest import Movability, RamRange
from vmplace.topology.placement import open_placement

ROUNDS = 2
LOCKS = ("mmu_lock", "mmap_lock", "slots_lock")
MIB_PAGES = 256
ALIASED_BYTES = 64 << 20
"""All of a large VM's memory is this, over and over: what counts is its page tables."""
SMALL_GPA = 1 << 38
NOTHING_S = 2.0

PERCENT = 99

ByWork = dict[str, dict[str, float]]
"""A wait (ms) by what was done and lock."""


class AliasedVm(BenchVm):
    """A VM whose memory is a small file, mapped many times; KVM maps all of it by small pages."""

    def __init__(self, npages: int) -> None:
        setattr(inside, "NPAGES", npages)  # noqa: B010 - a module that type checkers cannot see
        os.sched_setaffinity(0, {CPU_OF_NODE[0]})
        self.npages, self.hva = npages, map_aliased(npages * 4096)
        self.vcpu = inside.Vcpu(self.hva)
        self.ram = RamRange(self.hva, npages, 0, 4096, Movability.MOVABLE, "bench")
        self.placement = open_placement(this_guest(self))
        self._bits = np.zeros(5 * npages // 64, np.uint64)
        self._nids = np.arange(4, dtype=np.int32)

    def map_all(self) -> None:
        """Have KVM map all of it."""
        at, left = 0, self.npages * 4096
        while left:
            reported = bytearray(struct.pack("8Q", at, left, *[0] * 6))
            fcntl.ioctl(self.vcpu._fd, KVM_PRE_FAULT_MEMORY, reported)
            at, left = struct.unpack_from("2Q", reported)


def map_aliased(size: int) -> int:
    """Return where a small file is mapped over and over."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    fd = os.memfd_create("guest")
    os.ftruncate(fd, ALIASED_BYTES)
    both, shared_fixed, none = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | 0x10, 0x4000
    start = int(libc.mmap(None, size, both, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | none, -1, 0))
    for at in range(0, size, ALIASED_BYTES):
        libc.mmap(start + at, min(ALIASED_BYTES, size - at), both, shared_fixed, fd, 0)
    return start


def vm_fd() -> int:
    """Return the descriptor of this process's VM."""
    found = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if _target(fd) == "anon_inode:kvm-vm"]
    return found[-1]


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


class Work:
    """What is done to all of the VM's memory, and what others wait for meanwhile."""

    def __init__(self, vm: BenchVm) -> None:
        self.vm, self._vm_fd = vm, vm_fd()
        self._takers = LockTakers(
            self._vm_fd,
            vm.vcpu._fd,
            CPU_OF_NODE[1],
            fault_at=4096,
            small_gpa=SMALL_GPA,
        )
        self.longest: ByWork = {}
        self.most_below: ByWork = {}
        self.took_s: dict[str, float] = {}

    def watch(self, name: str, work: Callable[[], object]) -> None:
        """Do the work and note the longest waits, if they are less than in earlier rounds."""
        waits: Waits = {}
        with self._takers.taking(waits):
            started = time.monotonic()
            work()
            self.took_s[name] = round(time.monotonic() - started, 3)
        print(name, self.took_s[name], file=sys.stderr, flush=True)
        for lock in LOCKS:
            self._note(name, lock, waits.get(lock) or [0.0])

    def _note(self, name: str, lock: str, waits: list[float]) -> None:
        before = self.longest.setdefault(name, {})
        if max(waits) < before.get(lock, math.inf):
            before[lock] = max(waits)
            self.most_below.setdefault(name, {})[lock] = float(np.percentile(waits, PERCENT))

    def log(self, flags: int) -> None:
        """Switch dirty logging of all memory on or off."""
        region = struct.pack("IIQQQ", 0, flags, 0, self.vm.npages * 4096, self.vm.hva)
        fcntl.ioctl(self._vm_fd, KVM_SET_USER_MEMORY_REGION, region)

    def replicate(self, nodes: int) -> None:
        """Have a copy of each page on these nodes, or none."""
        gfns, count = np.array([1], np.uint64), np.array([self.vm.npages - 1], np.int32)
        done, status = np.zeros(1, np.int32), np.zeros(1, np.int32)
        native.placement_replicate(self.vm.placement.fd, nodes, gfns, count, done, status)
        if done[0] < 0.9 * count[0]:
            raise RuntimeError(f"only {done[0]} of {count[0]} pages are as asked for, status {status[0]}")

    def close(self) -> None:
        """Close the owner's fd, have another one, and wait until nothing of the first is left."""
        self.vm.placement.close()
        self.vm.placement = open_placement(this_guest(self.vm))
        # Whoever is to own the VM waits for that.
        span = np.array([[0, 1]], np.uint64)
        native.placement_hints(self.vm.placement.fd, span, 0, 100, 1024)


def mapped(npages: int) -> Work:
    """What is done to roots and page tables."""
    vm = AliasedVm(npages)
    vm.map_all()
    work = Work(vm)
    span = np.array([[0, npages]], np.uint64)
    for _ in range(ROUNDS):
        work.watch("nothing", lambda: time.sleep(NOTHING_S))
        work.watch("log_without_roots", lambda: work.log(LOG_DIRTY_PAGES))
        work.log(0)
        vm.map_all()
        work.watch("roots_populate", lambda: vm.roots(NODES))
        vm.map_all()
        work.watch("harvest", vm.harvest)
        work.watch("harvest_idle", vm.harvest)
        work.watch("hints", lambda: native.placement_hints(vm.placement.fd, span, 20000, 100, 1024))
        native.placement_hints(vm.placement.fd, span, 0, 100, 1024)
        work.watch("roots_off", lambda: vm.roots(0))
        vm.roots(NODES)
        work.watch("close", work.close)
        vm.roots(NODES)
        work.watch("log", lambda: work.log(LOG_DIRTY_PAGES))
        work.log(0)
        vm.map_all()
    return work


def replicated(npages: int) -> Work:
    """What is done to replicas."""
    work = Work(BenchVm(npages))
    vm = work.vm

    def anew() -> None:
        vm.roots(NODES)
        # REPLICATE refuses what is in LRU batches of other CPUs.
        native.drain_lru()
        work.replicate(NODES)

    for _ in range(ROUNDS):
        work.watch("nothing", lambda: time.sleep(NOTHING_S))
        vm.roots(NODES)
        native.drain_lru()
        work.watch("replicate", lambda: work.replicate(NODES))
        work.watch("collapse", lambda: work.replicate(0))
        for name, end in {
            "roots_off": lambda: vm.roots(0),
            "roots_of_one_node": lambda: vm.roots(1, populate=False),
            "close": work.close,
            "log": lambda: work.log(LOG_DIRTY_PAGES),
        }.items():
            anew()
            work.watch(name, end)
        work.log(0)
    anew()
    work.watch("discard", lambda: discard(vm))
    vm.roots(0)
    vm.touch(1, npages)
    work.watch("discard_without_replicas", lambda: discard(vm))
    return work


def discard(vm: BenchVm) -> None:
    """Give the memory back, as the VMM would."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.madvise(vm.hva + 4096, (vm.npages - 1) * 4096, mmap.MADV_DONTNEED)


KINDS = {"mapped": mapped, "replicated": replicated}


def main() -> None:
    """Print the figures of one size as JSON."""
    kind, mib = sys.argv[1], int(sys.argv[2])
    work = KINDS[kind](mib * MIB_PAGES)
    print(json.dumps({"longest_ms": work.longest, "p99_ms": work.most_below, "took_s": work.took_s}))


if __name__ == "__main__":
    main()
