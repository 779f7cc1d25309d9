"""Runs inside the emulated host: a guest whose pages are mapped so often that the kernel walks for long.

cost PROCESSES MAPPINGS NPAGES    print ns per page to mark and to read back: of a file that one process maps,
                                  and of one that each of so many processes maps so often
watch PROCESSES MAPPINGS NPAGES   print how long source "idle" takes for each, and what it says
"""

import ctypes
import json
import mmap
import os
import signal
import sys
import time
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection

import numpy as np

sys.path.insert(0, "/opt/vmplace")

from vmplace import native
from vmplace.sampling.page_frames import FrameReader
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_idle import IdleSource
from vmplace.topology.guest import GuestTopology, Movability, RamRange
from vmplace.topology.procfs import read_start_time
from vmplace.topology.sysfs import read_host

CHILDREN: list[int] = []
BITMAP = "/sys/kernel/mm/page_idle/bitmap"


def guest(fd: int, npages: int, mappings: int, orders: Connection) -> None:
    """Map the file once and touch it, then map it often without touching it; tell the first address."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    hva = libc.mmap(None, npages * 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    ctypes.memset(hva, 1, npages * 4096)
    for _ in range(mappings):
        if (
            libc.mmap(None, npages * 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
            == ctypes.c_void_p(-1).value
        ):
            break
    orders.send(hva)
    orders.recv()


def started(processes: int, mappings: int, npages: int) -> GuestTopology:
    """Return the first of the processes that map a file together."""
    fd, found = os.memfd_create("ram"), []
    os.ftruncate(fd, npages * 4096)
    for _ in range(max(processes, 1)):
        orders, theirs = Pipe()
        child = Process(target=guest, args=(fd, npages, mappings, theirs), daemon=True)
        child.start()
        found.append((child.pid, orders))
    hvas = [orders.recv() for _, orders in found]
    CHILDREN.extend(pid for pid, _ in found if pid)
    pid = found[0][0]
    assert pid
    ram = RamRange(hvas[0], npages, None, 4096, Movability.MOVABLE, "test")
    return GuestTopology(f"test-{pid}", pid, read_start_time(pid), "kvm", (), (ram,))


def per_page_ns(topology: GuestTopology) -> dict[str, float]:
    """Return what the calls take for the first 64 pages."""
    with FrameReader().opened(topology) as fd:
        reader = FrameReader()
        pfns = np.sort(reader.read(fd, topology.ram[0], 0, min(64, topology.ram[0].npages)).pfns)
    bitmap, accessed = os.open(BITMAP, os.O_RDWR), np.zeros(len(pfns), np.uint8)
    native.drain_lru()
    began = time.monotonic_ns()
    native.idle_mark(bitmap, pfns)
    marked = time.monotonic_ns()
    native.idle_collect(bitmap, pfns, accessed)
    ended = time.monotonic_ns()
    words = len(np.unique(pfns // 64))
    return {"mark": (marked - began) / 64, "collect": (ended - marked) / 64, "words": words}


def cost(processes: int, mappings: int, npages: int) -> None:
    """Print ns per page."""
    usual = started(1, 0, npages)
    # The first calls find nothing in caches, and emulation holds some up.
    plain = min((per_page_ns(usual) for _ in range(5)), key=lambda one: one["mark"])
    began = time.monotonic()
    dear = started(processes, mappings, npages)
    mapped_s = time.monotonic() - began
    print(json.dumps({"plain": plain, "dear": per_page_ns(dear), "mapped_s": mapped_s}))


def watch(processes: int, mappings: int, npages: int) -> None:
    """Print how long a window of each guest takes, and what came of it."""
    source = IdleSource(SourceSetup(read_host()))
    reported: dict[str, list[tuple[float, str | None]]] = {}
    for kind, topology in {
        "plain": started(1, 0, npages),
        "dear": started(processes, mappings, npages),
    }.items():
        reported[kind] = []
        for _ in range(3):
            began, error = time.monotonic(), None
            try:
                source.arm(topology)
                source.harvest(topology)
            except Exception as err:
                error = str(err)
            reported[kind].append((time.monotonic() - began, error))
    source.close()
    print(json.dumps(reported))


if __name__ == "__main__":
    try:
        {"cost": cost, "watch": watch}[sys.argv[1]](*map(int, sys.argv[2:]))
    finally:
        # Else they keep stdout open.
        for child_pid in CHILDREN:
            os.kill(child_pid, signal.SIGKILL)
        sys.stdout.flush()
        os._exit(0)
