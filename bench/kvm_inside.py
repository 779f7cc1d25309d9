"""Inside the emulated host: what sampling, roots and replicas cost, each with its control; prints JSON.

Once in time, once in instructions of the host.
"""

import json
import os
import statistics
import time
from pathlib import Path

import numpy as np

from bench.kvm_vm import CPU_OF_NODE, NODES, TIME, BenchVm, Cost, Figures, counting, figure
from vmplace import native
from vmplace.sampling.page_frames import CHUNK_PAGES, FrameReader

NPAGES = 32768
ROUNDS = 5
STORM = 2048


class Sampling:
    """What it costs to ask which pages were touched."""

    def __init__(self, vm: BenchVm, cost: Cost) -> None:
        self._vm = vm
        self._cost = cost
        self._bitmap = os.open("/sys/kernel/mm/page_idle/bitmap", os.O_RDWR)

    def harvest(
        self, touched: int, nodes: tuple[int, ...], npages: int = NPAGES, *, early: bool = False
    ) -> float:
        """Return the cost of a harvest after each node touched so many pages, or of one before it."""
        self._vm.harvest()
        costs = []
        for _ in range(ROUNDS):
            for node in nodes:
                self._vm.touch(1, 1 + touched, node)
            costs.append(self._cost.of(lambda: self._vm.harvest(npages, clear=not early)))
            if early:
                self._vm.harvest(npages)
        return statistics.median(costs)

    def idle(self, touched: int) -> float:
        """Return the cost of marking all pages idle and asking which are not any more."""
        native.drain_lru()
        pfns, accessed = self._pfns(), np.zeros(NPAGES, np.uint8)
        costs = []
        for _ in range(ROUNDS):
            marking = self._cost.of(lambda: native.idle_mark(self._bitmap, pfns))
            self._vm.touch(1, 1 + touched)
            costs.append(marking + self._cost.of(lambda: native.idle_collect(self._bitmap, pfns, accessed)))
        return statistics.median(costs)

    def _pfns(self) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        """Return the frames of all pages, ascending."""
        reader = FrameReader()
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
            found = [
                reader.read(pagemap.fileno(), self._vm.ram, first, CHUNK_PAGES).pfns.copy()
                for first in range(0, NPAGES, CHUNK_PAGES)
            ]
        return np.sort(np.concatenate(found))


def sampling(vm: BenchVm, cost: Cost) -> Figures:
    """Harvests against idle-page tracking."""
    vm.roots(0)
    sampler, unit = Sampling(vm, cost), f"{cost.unit} per {NPAGES} pages"
    idle_half, idle_few = sampler.idle(NPAGES // 2), sampler.idle(NPAGES // 64)
    idle_eighth = sampler.idle(NPAGES // 8)
    half, eighth, few = (sampler.harvest(NPAGES // share, (0,)) for share in (2, 8, 64))
    grown, middle, small = (sampler.harvest(1024, (0,), NPAGES // share) for share in (1, 4, 16))
    vm.roots(NODES)
    all_nodes = tuple(range(len(CPU_OF_NODE)))
    four, four_few = (sampler.harvest(NPAGES // share, all_nodes) for share in (2, 64))
    early, early_few = (sampler.harvest(NPAGES // share, all_nodes, early=True) for share in (2, 64))
    vm.roots(0)
    return {
        "harvest_1root_half": figure(half, idle_half, unit),
        "harvest_4root_half": figure(four, idle_half, unit),
        "harvest_1root_1of8": figure(eighth, idle_eighth, unit),
        "harvest_1root_1of64": figure(few, idle_few, unit),
        "reading_4root_half": figure(early, four, unit),
        "reading_4root_1of64": figure(early_few, four_few, unit),
        "harvest_growth_x4": figure(middle, small, f"{cost.unit}, 1024 pages touched"),
        "harvest_growth_x16": figure(grown, small, f"{cost.unit}, 1024 pages touched"),
    }


def sampling_huge(vm: BenchVm, cost: Cost) -> Figures:
    """Harvests against idle-page tracking, all pages huge."""
    sampler, unit = Sampling(vm, cost), f"{cost.unit} per {NPAGES} pages of 4 KiB"
    idle, half = sampler.idle(NPAGES // 2), sampler.harvest(NPAGES // 2, (0,))
    return {f"harvest_1root_half_2m{cost.suffix}": figure(half, idle, unit)}


def enabling(vm: BenchVm, cost: Cost) -> Figures:
    """Populating a root for each node against taking the faults."""
    vm.roots(0)
    vm.touch(1, NPAGES)
    populated = cost.of(lambda: vm.roots(NODES))
    vm.roots(0)
    vm.touch(1, NPAGES)
    vm.roots(NODES, populate=False)

    def touch_on_all() -> None:
        for node in range(len(CPU_OF_NODE)):
            vm.touch(1, NPAGES, node)

    cold, warm = cost.of(touch_on_all), cost.of(touch_on_all)
    return {"roots_enable_vs_faults": figure(populated, cold - warm, f"{cost.unit} per {NPAGES} pages")}


def replicate(vm: BenchVm, nodes: int) -> int:
    """Have a copy of each of STORM pages on nodes, or none; return of how many there is."""
    gfns, count = np.array([1], np.uint64), np.array([STORM], np.int32)
    done, status = np.zeros(1, np.int32), np.zeros(1, np.int32)
    native.placement_replicate(vm.placement.fd, nodes, gfns, count, done, status)
    if done[0] < STORM * 0.9:
        raise RuntimeError(f"only {done[0]} of {STORM} pages are as asked for, status {status[0]}")
    return int(done[0])


def copy_on_write(vm: BenchVm, cost: Cost) -> float:
    """Return the cost of a write to a page that a forked child has, too."""
    vm.roots(0)
    child = os.fork()
    if not child:
        time.sleep(600)
    per_page = cost.of(lambda: vm.touch(1, 1 + STORM)) / STORM
    os.kill(child, 9)
    os.waitpid(child, 0)
    return per_page


def replicas(vm: BenchVm, cost: Cost) -> Figures:
    """A copy of a page, and a write to one that has copies, against a write to a page shared with a child."""
    made, collapsed, copied = [], [], []
    for _ in range(ROUNDS):
        vm.roots(NODES)
        replicate(vm, 0)
        # REPLICATE refuses what is in LRU batches of other CPUs.
        native.drain_lru()
        spent = cost.of(lambda: replicate(vm, NODES))
        pages = replicate(vm, NODES)
        made.append(spent / pages / (len(CPU_OF_NODE) - 1))
        collapsed.append(cost.of(lambda: vm.touch(1, 1 + STORM)) / pages)
        copied.append(copy_on_write(vm, cost))
    one, write, control = (statistics.median(costs) for costs in (made, collapsed, copied))
    return {
        "replicate_vs_cow": figure(one, control, f"{cost.unit} per copy"),
        "collapse_vs_cow": figure(write, control, f"{cost.unit} per page"),
    }


def table_kib() -> int:
    """Return what KVM's page tables take on this host."""
    # CPUs keep some of what they have counted to themselves until they are asked.
    Path("/proc/sys/vm/stat_refresh").write_text("1")
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("SecPageTables:"))


def memory(vm: BenchVm, before_kib: int) -> Figures:
    """What each of the nodes' roots takes against the one root of a stock kernel, all pages mapped."""
    vm.roots(0)
    vm.touch(1, NPAGES)
    one = table_kib() - before_kib
    vm.roots(NODES)
    all_nodes = table_kib() - before_kib
    vm.roots(0)
    return {"memory_per_root": figure(all_nodes / len(CPU_OF_NODE), one, f"KiB, {NPAGES} pages mapped")}


def figures(vm: BenchVm, cost: Cost) -> Figures:
    """Return all figures in one unit."""
    found = sampling(vm, cost) | enabling(vm, cost) | replicas(vm, cost)
    return {name + cost.suffix: one for name, one in found.items()}


def main() -> None:
    """Print the figures as JSON."""
    before_kib = table_kib()
    vm = BenchVm(NPAGES)
    reported = memory(vm, before_kib) | figures(vm, TIME)
    with counting() as meter:
        reported |= figures(vm, meter.cost())
    # Takes the place of the other one: there is one such VM in a process, and one placement fd.
    vm.placement.close()
    huge = BenchVm(NPAGES, 2048)
    reported |= sampling_huge(huge, TIME)
    with counting() as meter:
        reported |= sampling_huge(huge, meter.cost())
    print(json.dumps(reported))


if __name__ == "__main__":
    main()
