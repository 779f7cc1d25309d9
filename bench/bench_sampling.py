"""What does sampling cost?  CPU seconds per GiB and window, memory of the sampling process; JSON.

The guest is a process with SIZE GiB of present pages: private memory of its own (--pages small|huge), or
with --pages mapped one file of 64 MiB mapped over and over, so that 16 GiB need no 16 GiB of the machine.
The control is what no sampler can avoid: reading the guest's pagemap, and nothing else.

    python3 -m bench.bench_sampling 16 --pages mapped

Without idle-page tracking in the kernel the bitmap is an ordinary file ("bitmap": "file" in the result): the
cost of this process is real then, but for the kernel's walk over the reverse mappings.
"""

import argparse
import ctypes
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from bench.record import Figures, add_record_options, measure
from vmplace import native
from vmplace.errors import UnsupportedHostError
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import GuestPages
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_idle import BITMAP, IdleSource
from vmplace.topology.guest import PAGE_BYTES, GuestTopology, Movability, RamRange
from vmplace.topology.guests_libvirt import Libvirt
from vmplace.topology.procfs import read_start_time
from vmplace.topology.sysfs import read_host

FILE_BYTES = 64 << 20
WINDOWS = 3
PROT_RW, MAP_SHARED_FIXED_POPULATE = 3, 0x1 | 0x10 | 0x8000


def guest(size_bytes: int, pages: str, reported: Connection) -> None:
    """Be the guest: tell the address, wait for the end."""
    area = mmap.mmap(-1, size_bytes + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    area.madvise(mmap.MADV_HUGEPAGE if pages == "huge" else mmap.MADV_NOHUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    hva = -(-address // (2 << 20)) * (2 << 20)
    if pages == "mapped":
        map_over_and_over(hva, size_bytes)
    else:
        ctypes.memset(hva, 1, size_bytes)
    reported.send(hva)
    reported.recv()
    os._exit(0)


def map_over_and_over(hva: int, size_bytes: int) -> None:
    """Map one small file over the whole range, with page tables filled in."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fd = os.memfd_create("guest")
    os.ftruncate(fd, FILE_BYTES)
    for at in range(hva, hva + size_bytes, FILE_BYTES):
        if libc.mmap(at, FILE_BYTES, PROT_RW, MAP_SHARED_FIXED_POPULATE, fd, 0) != at:
            raise OSError(ctypes.get_errno(), "mmap")


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return user and system time of this process for one run."""
    before = time.process_time()
    work()
    return time.process_time() - before


def read_pagemap_only(topology: GuestTopology) -> None:
    """Read all pagemap entries of the guest, as the control."""
    entries = np.zeros(1 << 16, np.uint64)
    fd = os.open(f"/proc/{topology.pid}/pagemap", os.O_RDONLY)
    for first in range(0, topology.ram[0].npages, len(entries)):
        native.read_pagemap(fd, topology.ram[0].hva + first * PAGE_BYTES, entries)
    os.close(fd)


def setup_with_bitmap(scratch: Path) -> tuple[SourceSetup, str]:
    """Return the real setup, or one whose bitmap is a file where the kernel has none."""
    real = SourceSetup(read_host())
    try:
        IdleSource(real).close()
        return real, "kernel"
    except UnsupportedHostError:
        path = scratch / BITMAP
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.truncate(8 << 20)
        (scratch / "devices").symlink_to("/sys/devices")
        return SourceSetup(real.host, scratch), "file"


def status_mib(field: str) -> float:
    """Return VmRSS or VmHWM of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field))) / 1024


def load_the_agent() -> bool:
    """Load what the agent's process has loaded beside the source; return whether it asked libvirt."""
    from vmplace.agent import loop, wiring
    from vmplace.interfaces import agent_command

    del loop, wiring, agent_command
    try:
        return Libvirt("test:///default", answer_s=60).read().problem is None
    except UnsupportedHostError:
        return False


def measured(topology: GuestTopology, setup: SourceSetup, size_gib: float) -> dict[str, object]:
    """Sample some windows; return the costs."""
    source, costs = IdleSource(setup), []
    pages: GuestPages | None = None
    rss_before = status_mib("VmRSS")
    for _ in range(WINDOWS):
        arm = cpu_seconds(lambda: source.arm(topology))
        started, before = time.monotonic(), time.process_time()
        batch = source.harvest(topology)
        costs.append((arm, time.process_time() - before, time.monotonic() - started))
        pages = absorbed(pages, batch)
        del batch
    source.close()
    arm, harvest, took = (sorted(values)[WINDOWS // 2] for values in zip(*costs, strict=True))
    return {
        "arm_cpu_s_per_gib": round(arm / size_gib, 5),
        "harvest_cpu_s_per_gib": round(harvest / size_gib, 5),
        "harvest_s": round(took, 4),
        "present_pages": sum(one.present for one in pages.ranges) if pages else None,
        "huge_blocks": sum(int(one.huge.sum()) for one in pages.ranges) if pages else None,
        "rss_before_mib": round(rss_before, 1),
        "rss_peak_mib": round(status_mib("VmHWM"), 1),
    }


def main() -> int:
    """Run the bench; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size_gib", type=float)
    parser.add_argument("--pages", choices=["small", "huge", "mapped"], default="mapped")
    add_record_options(parser)
    options = parser.parse_args()
    return measure("sampling", {options.pages: partial(of_guest, options.size_gib, options.pages)}, options)


def of_guest(size_gib: float, pages: str) -> Figures:
    """Return the figures of a guest of this size."""
    size_bytes = int(size_gib * (1 << 30)) // FILE_BYTES * FILE_BYTES
    reported, theirs = Pipe()
    child = Process(target=guest, args=(size_bytes, pages, theirs), daemon=True)
    child.start()
    hva, pid = reported.recv(), child.pid or 0
    with_libvirt = load_the_agent()
    ram = RamRange(hva, size_bytes // PAGE_BYTES, None, PAGE_BYTES, Movability.MOVABLE, "bench")
    topology = GuestTopology("bench", pid, read_start_time(pid), "kvm", (), (ram,))
    with tempfile.TemporaryDirectory() as scratch:
        setup, bitmap = setup_with_bitmap(Path(scratch))
        control = cpu_seconds(lambda: read_pagemap_only(topology))
        result = measured(topology, setup, size_gib)
    result |= {"control_pagemap_cpu_s_per_gib": round(control / size_gib, 5), "bitmap": bitmap}
    reported.send(None)
    child.join()
    return {"size_gib": size_gib, "libvirt_asked": with_libvirt} | result


if __name__ == "__main__":
    sys.exit(main())
