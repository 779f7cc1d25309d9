"""Runs inside the emulated host: a process with declared memory ("child"), and the mover on it.

child NAME MIB KIND     memory of small or huge pages, on the nodes that numactl says; writes pid and address
                        to /run/NAME.json, sums its memory over and over until /run/NAME.over exists, then
                        writes all different sums that it saw to /run/NAME.sums
                        a NAME that begins with "vm" has a VM whose memory this is
apply JOURNAL NIDS KIND MB_PER_S NAME...   move page i of each child to NIDS[i mod len], print the result
kernel NAME                                print what moves the child's pages, as a name of a class
undo JOURNAL                               print the result
"""

import ctypes
import fcntl
import json
import mmap
import os
import struct
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

sys.path.insert(0, "/opt/vmplace")

from vmplace.actuation.budget import Budget
from vmplace.actuation.gfn_kernel import GuestKernels, can_move
from vmplace.actuation.journal import Journal
from vmplace.actuation.mover import Mover
from vmplace.actuation.undo import undo
from vmplace.policy.plan import Move, PlacementPlan
from vmplace.topology.guest import GuestTopology, Movability, RamRange

RUN = Path("/run")


def child(name: str, mib: str, kind: str) -> None:
    """Be a process whose memory has a known content; numactl outside says where it lies."""
    size = int(mib) << 20
    area = mmap.mmap(-1, size + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE if kind == "huge" else mmap.MADV_NOHUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(area)) % (2 << 20)
    ram = np.frombuffer(area, np.uint64, size // 8, start)
    ram[:] = np.arange(size // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    if name.startswith("vm"):
        make_vm(ram.ctypes.data, size)
    write(name, "json", {"pid": os.getpid(), "hva": ram.ctypes.data, "mib": int(mib)})
    sums = set()
    while not (RUN / f"{name}.over").exists():
        sums.add(zlib.crc32(ram.data))
        time.sleep(0.2)
    write(name, "sums", sorted(sums))


def make_vm(hva: int, size_bytes: int) -> None:
    """Give the process a VM with this memory; the descriptors stay open."""
    vm = fcntl.ioctl(os.open("/dev/kvm", os.O_RDWR), 0xAE01, 0)
    # KVM_SET_USER_MEMORY_REGION: slot, flags, guest_phys_addr, memory_size, userspace_addr.
    fcntl.ioctl(vm, 0x4020AE46, struct.pack("IIQQQ", 0, 0, 1 << 32, size_bytes, hva))


def write(name: str, suffix: str, value: object) -> None:
    """Write a file that is whole as soon as it is there."""
    new = RUN / f"{name}.new"
    new.write_text(json.dumps(value))
    new.rename(RUN / f"{name}.{suffix}")


def guest_of(name: str) -> GuestTopology:
    """Return the topology of a child."""
    reported = json.loads((RUN / f"{name}.json").read_text())
    stat = Path(f"/proc/{reported['pid']}/stat").read_text()
    start_time = int(stat[stat.rindex(")") :].split()[20])
    ram = RamRange(reported["hva"], reported["mib"] * 256, None, 4096, Movability.MOVABLE, "anonymous")
    return GuestTopology(name, reported["pid"], start_time, "kvm", (), (ram,))


def move_of(guest: GuestTopology, nids: list[int], step: int) -> Move:
    """Return a move of all of a child's memory."""
    at = np.arange(guest.ram[0].npages // step)
    to_nid = np.array(nids, np.int16)[at % len(nids)]
    hva = (guest.ram[0].hva + at * step * 4096).astype(np.uint64)
    return Move(
        guest.name, hva, np.full(len(at), step, np.uint16), np.zeros(len(at), np.int16), to_nid, "test"
    )


def apply(journal_path: str, nids: str, kind: str, mb_per_s: str, *names: str) -> None:
    """Move the memory of children."""
    guests = {name: guest_of(name) for name in names}
    step = 512 if kind == "huge" else 1
    targets = [int(nid) for nid in nids.split(",")]
    plan = PlacementPlan(tuple(move_of(guest, targets, step) for guest in guests.values()))
    with Journal(Path(journal_path)) as journal:
        budget = Budget(float(mb_per_s) * 1e6, burst_s=0.1)
        result = Mover(journal, budget, by_gfn=can_move()).apply(plan, guests, patience_s=120)
    print(json.dumps(asdict(result)))


def undo_all(journal_path: str) -> None:
    """Undo what the journal holds."""
    with Journal(Path(journal_path)) as journal:
        print(json.dumps(asdict(undo(journal))))


def kernel(name: str) -> None:
    """Print what moves the child's pages."""
    print(type(GuestKernels(by_gfn=can_move()).of(guest_of(name))).__name__)


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {
        "child": child,
        "apply": apply,
        "kernel": kernel,
        "undo": undo_all,
    }
    roles[sys.argv[1]](*sys.argv[2:])
