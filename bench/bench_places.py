"""What does it cost to know where a guest's pages are, as source "kvm" does?  CPU ms per GiB and window.

The guest is private memory of this process, in small pages or in huge ones; a share of its 2 MiB blocks was
touched.  The first window looks all of them up, the others what was touched and a sixteenth of the rest
(sampling/known_places.py).  The control, in the same run, is what no look-up of all can do without: reading
the whole pagemap.

    python3 -m bench.bench_places 4
"""

import argparse
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.record import add_record_options, measure
from vmplace.sampling.block_rows import BlockRows, rows_of_pages
from vmplace.sampling.frame_nodes import UNKNOWN
from vmplace.sampling.known_places import KnownPlaces
from vmplace.sampling.page_arrays import Bytes
from vmplace.sampling.page_frames import FrameChunk
from vmplace.sampling.range_walk import RangeWalk
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, GuestTopology, Movability, RamRange
from vmplace.topology.procfs import read_start_time
from vmplace.topology.sysfs import read_host

GIB = 1 << 30
WINDOWS = 8
SHARES = (0.0, 0.05, 1.0)


def guest(size: int, *, huge: bool) -> tuple[mmap.mmap, GuestTopology]:
    """Return memory, all of it written, and what vmplace would know of it."""
    area = mmap.mmap(-1, size + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    pages = np.frombuffer(area, np.uint8)
    pages[::PAGE_BYTES] = 1
    hva = -(-pages.ctypes.data // HUGE_BYTES) * HUGE_BYTES
    ram = RamRange(hva, size // PAGE_BYTES, None, PAGE_BYTES, Movability.MOVABLE, "")
    return area, GuestTopology("bench", os.getpid(), read_start_time(os.getpid()), "kvm", (), (ram,))


def windows(walk: RangeWalk, guest: GuestTopology, share: float) -> Iterator[Callable[[], None]]:
    """Yield the work of one window after the other."""
    (ram,), places = guest.ram, KnownPlaces()
    blocks = ram.size_bytes // HUGE_BYTES
    touched = np.arange(blocks) < share * blocks

    def fill(_chunk: FrameChunk, _accessed: Bytes) -> None:
        """Tell of no page that it was touched: that costs nothing here."""

    def look_up() -> None:
        with walk.frames.opened(guest) as pagemap:
            sample = walk.sample(guest, pagemap, ram, fill, places.before(guest, ram, touched))
        nodes = BlockRows.of(rows_of_pages(sample.node_index, ram, UNKNOWN))
        places.note(guest, (replace(sample, nodes=nodes),))

    for _ in range(WINDOWS):
        yield look_up


def read_all(walk: RangeWalk, guest: GuestTopology) -> None:
    """Read the whole pagemap: the control."""
    with walk.frames.opened(guest) as pagemap:
        for _ in walk.frames.chunks(pagemap, guest.ram[0]):
            pass


def cpu_s(work: Callable[[], None]) -> float:
    """Return the CPU seconds of this process, the kernel's on its behalf included."""
    before = time.process_time()
    work()
    return time.process_time() - before


def measured(gib: int, *, huge: bool) -> dict[str, object]:
    """Return CPU ms per GiB, by share of the blocks that was touched."""
    walk = RangeWalk(read_host().nids, Path("/sys"), Path("/proc"))
    _area, known = guest(gib * GIB, huge=huge)
    control = min(cpu_s(lambda: read_all(walk, known)) for _ in range(WINDOWS))
    found: dict[str, object] = {"read_pagemap_ms": round(1e3 * control / gib, 2)}
    for share in SHARES:
        first, *later = (cpu_s(work) for work in windows(walk, known, share))
        found[f"touched_{share:g}"] = {
            "first_ms": round(1e3 * first / gib, 2),
            "window_ms": round(1e3 * sorted(later)[len(later) // 2] / gib, 2),
            "ratio_to_control": round(sorted(later)[len(later) // 2] / control, 2),
        }
    walk.close()
    return found


def main() -> int:
    """Run the bench; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gib", type=int, nargs="?", default=2)
    add_record_options(parser)
    options = parser.parse_args()
    parts = {kind: partial(measured, options.gib, huge=kind == "huge") for kind in ("small", "huge")}
    return measure("places", parts, options)


if __name__ == "__main__":
    sys.exit(main())
