"""Runs inside the emulated host: what the placement fd costs, each figure with its control; prints JSON.

One process is VMM, vCPU and agent in turn: nothing else runs that could be measured along.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np

sys.path.insert(0, "/opt/vmplace")

from vmplace import native
from vmplace.sampling.page_frames import CHUNK_PAGES, FrameReader
from vmplace.topology.guest import GuestTopology, Movability, RamRange
from vmplace.topology.placement import Placement, open_placement
from vmplace.topology.procfs import read_start_time

# The VM of the lab's sampling tests, which lies beside this file inside the host.
inside = import_module("sampling_inside")

NPAGES = 65536
NODES = 0b1111
CPU_OF_NODE = (0, 2, 4, 6)
ROUNDS = 5
STORM = 2048

Figures = dict[str, dict[str, float | str]]


def seconds(work: Callable[[], object]) -> float:
    """Return how long the work took."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


def figure(value: float, control: float, unit: str) -> dict[str, float | str]:
    """Return one figure beside its control."""
    return {"value": value, "control": control, "ratio": value / control, "unit": unit}


class Bench:
    """A VM of NPAGES small pages; page 0 holds its code and is never touched as data."""

    def __init__(self) -> None:
        setattr(inside, "NPAGES", NPAGES)  # noqa: B010 - a module that type checkers cannot see
        os.sched_setaffinity(0, {0})
        self.hva = inside.memory(4)
        self._touch = inside.kvm_toucher(self.hva)
        self.ram = RamRange(self.hva, NPAGES, 0, 4096, Movability.MOVABLE, "bench")
        guest = GuestTopology("bench", os.getpid(), read_start_time(os.getpid()), "kvm", (), (self.ram,))
        self.placement: Placement = open_placement(guest)
        self._bits = np.zeros(5 * NPAGES // 64, np.uint64)
        self._nids = np.arange(4, dtype=np.int32)
        self._bitmap = os.open("/sys/kernel/mm/page_idle/bitmap", os.O_RDWR)
        self.touch(1, NPAGES)

    def touch(self, first: int, end: int, node: int = 0) -> None:
        """Have the vCPU write a byte of each page, on a CPU of the node."""
        os.sched_setaffinity(0, {CPU_OF_NODE[node]})
        self._touch(first, end)

    def roots(self, nodes: int, *, populate: bool = True) -> None:
        """Give nodes roots of their own."""
        native.placement_roots(self.placement.fd, nodes, populate)

    def harvest(self, npages: int = NPAGES) -> None:
        """Collect and clear."""
        native.placement_harvest(self.placement.fd, 0, npages, 0, self._nids, self._bits, self._bits, True)

    def pfns(self) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        """Return the frames of all pages, ascending."""
        reader = FrameReader()
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
            found = [
                reader.read(pagemap.fileno(), self.ram, first, CHUNK_PAGES).pfns.copy()
                for first in range(0, NPAGES, CHUNK_PAGES)
            ]
        return np.sort(np.concatenate(found))

    def harvest_us(self, touched: int, nodes: tuple[int, ...], npages: int = NPAGES) -> float:
        """Return the cost of a harvest after each node touched so many pages."""
        self.harvest()
        costs = []
        for _ in range(ROUNDS):
            for node in nodes:
                self.touch(1, 1 + touched, node)
            costs.append(seconds(lambda: self.harvest(npages)))
        return statistics.median(costs) * 1e6

    def idle_us(self, touched: int) -> float:
        """Return the cost of marking all pages idle and asking which are not any more."""
        native.drain_lru()
        pfns, accessed = self.pfns(), np.zeros(NPAGES, np.uint8)
        costs = []
        for _ in range(ROUNDS):
            marked = seconds(lambda: native.idle_mark(self._bitmap, pfns))
            self.touch(1, 1 + touched)
            costs.append(marked + seconds(lambda: native.idle_collect(self._bitmap, pfns, accessed)))
        return statistics.median(costs) * 1e6


def sampling(bench: Bench) -> Figures:
    """Harvests against idle-page tracking."""
    bench.roots(0)
    idle_half, idle_few = bench.idle_us(NPAGES // 2), bench.idle_us(NPAGES // 64)
    half, few = bench.harvest_us(NPAGES // 2, (0,)), bench.harvest_us(NPAGES // 64, (0,))
    grown, small = bench.harvest_us(1024, (0,)), bench.harvest_us(1024, (0,), NPAGES // 16)
    bench.roots(NODES)
    four = bench.harvest_us(NPAGES // 2, (0, 1, 2, 3))
    bench.roots(0)
    return {
        "harvest_1root_half": figure(half, idle_half, "us per 65536 pages"),
        "harvest_4root_half": figure(four, idle_half, "us per 65536 pages"),
        "harvest_1root_1of64": figure(few, idle_few, "us per 65536 pages"),
        "harvest_growth_x16": figure(grown, small, "us, 1024 pages touched"),
    }


def enabling(bench: Bench) -> Figures:
    """Populating four roots against taking the faults."""
    bench.roots(0)
    bench.touch(1, NPAGES)
    populated = seconds(lambda: bench.roots(NODES))
    bench.roots(0)
    bench.touch(1, NPAGES)
    bench.roots(NODES, populate=False)
    cold = sum(seconds(lambda node=node: bench.touch(1, NPAGES, node)) for node in range(4))  # type: ignore[misc]
    warm = sum(seconds(lambda node=node: bench.touch(1, NPAGES, node)) for node in range(4))  # type: ignore[misc]
    return {"roots_enable_vs_faults": figure(populated * 1e6, (cold - warm) * 1e6, "us per 65536 pages")}


def collapsing(bench: Bench) -> Figures:
    """Writes to replicated pages against writes to pages shared with a forked child."""
    collapses, copies = [], []
    gfns, count = np.array([1], np.uint64), np.array([STORM], np.int32)
    for _ in range(ROUNDS):
        bench.roots(NODES)
        for nodes in (0, NODES):
            done, status = np.zeros(1, np.int32), np.zeros(1, np.int32)
            native.placement_replicate(bench.placement.fd, nodes, gfns, count, done, status)
        if done[0] < STORM * 0.9:
            raise RuntimeError(f"only {done[0]} of {STORM} pages were replicated, status {status[0]}")
        collapses.append(seconds(lambda: bench.touch(1, 1 + STORM)) / int(done[0]))
        bench.roots(0)
        child = os.fork()
        if not child:
            time.sleep(600)
        copies.append(seconds(lambda: bench.touch(1, 1 + STORM)) / STORM)
        os.kill(child, 9)
        os.waitpid(child, 0)
    value, control = statistics.median(collapses) * 1e6, statistics.median(copies) * 1e6
    return {"collapse_vs_cow": figure(value, control, "us per page")}


def slowdown(bench: Bench) -> Figures:
    """A vCPU's work with a harvest each second against the same without."""
    bench.roots(NODES)

    def work(*, harvesting: bool) -> float:
        vcpu, due, end = 0.0, time.monotonic() + 1, time.monotonic() + 8
        rounds = 0
        while time.monotonic() < end:
            vcpu += seconds(lambda: bench.touch(1, NPAGES // 4))
            rounds += 1
            if harvesting and time.monotonic() > due:
                bench.harvest()
                due += 1
        return vcpu / rounds * 1e6

    work(harvesting=False)
    pairs = [(work(harvesting=True), work(harvesting=False)) for _ in range(3)]
    value, control = (statistics.median(side) for side in zip(*pairs, strict=True))
    return {"guest_slowdown_harvest": figure(value, control, "us per 16384 pages touched")}


if __name__ == "__main__":
    one = Bench()
    print(json.dumps(sampling(one) | enabling(one) | collapsing(one) | slowdown(one)))
