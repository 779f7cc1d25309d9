"""Inside the emulated host: a harvest against DAMON that checks each page; prints JSON.

DAMON looks at one page of each region.  Here each page is a region: it learns what a harvest does.  One look
at all pages is a round of its thread: it clears the accessed bits, sleeps, and reads them.
By default DAMON has at most 1000 regions, whatever the size of the guest, and guesses the pages between.

Time is what the thread ran (the first figure of /proc/PID/schedstat), instructions are those of the CPU
that it has for itself.  Source: Documentation/admin-guide/mm/damon/usage.rst.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.kvm_vm import CPU_OF_NODE, TIME, BenchVm, Cost, Figures, counting, figure

NPAGES = 4096
"""Few, as each region is a directory of sysfs."""
LOOKS = 8
HARVESTS = 5
SAMPLE_US = 200_000
NEVER_US = 3_600_000_000
ADMIN = Path("/sys/kernel/mm/damon/admin/kdamonds")
TIMEOUT_S = 120.0


def write_settings(files: Mapping[str, int | str], folder: Path) -> None:
    """Write settings."""
    for name, value in files.items():
        (folder / name).write_text(str(value))


def look_at_pages(hva: int, folder: Path) -> None:
    """Set DAMON up for this process's pages from an address on, one region each."""
    write_settings({"contexts/nr_contexts": 1}, folder)
    context = folder / "contexts/0"
    write_settings({"operations": "fvaddr", "targets/nr_targets": 1}, context)
    intervals = {"sample_us": SAMPLE_US, "aggr_us": NEVER_US, "update_us": NEVER_US}
    write_settings(intervals, context / "monitoring_attrs/intervals")
    # The greatest first: neither may pass the other.
    write_settings({"max": NPAGES, "min": NPAGES}, context / "monitoring_attrs/nr_regions")
    target = context / "targets/0"
    write_settings({"pid_target": os.getpid(), "regions/nr_regions": NPAGES}, target)
    for page in range(NPAGES):
        start = hva + page * 4096
        write_settings({"start": start, "end": start + 4096}, target / f"regions/{page}")


@contextmanager
def damon(hva: int, cpu: int) -> Iterator[int]:
    """Have DAMON look at pages, on a CPU; yields the process ID of its thread."""
    write_settings({"nr_kdamonds": 1}, ADMIN)
    look_at_pages(hva, ADMIN / "0")
    write_settings({"state": "on"}, ADMIN / "0")
    try:
        pid = int((ADMIN / "0/pid").read_text())
        os.sched_setaffinity(pid, {cpu})
        yield pid
    finally:
        write_settings({"state": "off"}, ADMIN / "0")


def looks(pid: int) -> int:
    """Return how often the thread has gone to sleep, which it does once in each look at all pages."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches")))


def per_look(vm: BenchVm, pid: int, spent: Callable[[], float]) -> float:
    """Return what a look costs while the vCPU touches half of the pages."""
    deadline = time.monotonic() + TIMEOUT_S
    first, before = looks(pid), spent()
    while (done := looks(pid) - first) < LOOKS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"DAMON looked {done} times in {TIMEOUT_S:.0f} s")
        vm.touch(1, 1 + NPAGES // 2)
        time.sleep(SAMPLE_US / 4e6)
    return (spent() - before) / done


def ran_us(pid: int) -> float:
    """Return how long the thread ran."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e3


def per_harvest(vm: BenchVm, cost: Cost) -> float:
    """Return what a harvest costs after the vCPU touched half of the pages."""
    costs = []
    for _ in range(HARVESTS):
        vm.touch(1, 1 + NPAGES // 2)
        costs.append(cost.of(partial(vm.harvest, NPAGES)))
    return statistics.median(costs)


def compared(vm: BenchVm, cost: Cost, pid: int, spent: Callable[[], float]) -> Figures:
    """Return the cost of a harvest beside that of a look."""
    unit = f"{cost.unit} per {NPAGES} pages"
    name = f"harvest_1root_half_vs_damon{cost.suffix}"
    return {name: figure(per_harvest(vm, cost), per_look(vm, pid, spent), unit)}


def main() -> None:
    """Print the figures as JSON."""
    vm, cpu = BenchVm(NPAGES), CPU_OF_NODE[-1]
    vm.roots(0)
    with damon(vm.hva, cpu) as pid:
        reported = compared(vm, TIME, pid, partial(ran_us, pid))
        with counting() as meter:
            reported |= compared(vm, meter.cost(), pid, lambda: float(meter.on_cpu(cpu)[0]))
    print(json.dumps(reported))


if __name__ == "__main__":
    main()
