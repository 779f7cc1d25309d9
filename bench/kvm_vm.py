"""Inside the emulated host: the VM that bench-kvm measures, and what a piece of work costs.

One process is VMM, vCPU and agent: nothing else runs that could be measured along.
"""

import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

import numpy as np

sys.path.insert(0, "/opt/vmplace")

from lab.counters_meter import CPU, GUEST_HOST, HEADER, REGION_BYTES, find_device
from vmplace import native
from vmplace.topology.guest import GuestTopology, Movability, RamRange
from vmplace.topology.placement import Placement, open_placement
from vmplace.topology.procfs import read_start_time
from vmplace.topology.sysfs import read_host

# The VM of the lab's sampling tests, which lies in the folder above this one inside the host.
inside = import_module("sampling_inside")

CPU_OF_NODE = tuple(node.cpus[0] for node in read_host().nodes)
NODES = (1 << len(CPU_OF_NODE)) - 1

Work = Callable[[], object]
Figure = dict[str, float | str]
Figures = dict[str, Figure]


@dataclass(frozen=True)
class Cost:
    """A way to measure work: ``of`` gives its cost in ``unit``; names of figures end in ``suffix``."""

    suffix: str
    unit: str
    of: Callable[[Work], float]


def figure(value: float, control: float, unit: str) -> Figure:
    """Return one figure beside its control."""
    return {"value": value, "control": control, "ratio": value / control, "unit": unit}


def microseconds(work: Work) -> float:
    """Return how long the work took."""
    started = time.monotonic()
    work()
    return (time.monotonic() - started) * 1e6


TIME = Cost("", "us", microseconds)


class Meter:
    """The instructions that the lab's meter counts; only while ``counting``."""

    def __init__(self) -> None:
        with find_device().open("rb") as device:
            region = mmap.mmap(device.fileno(), REGION_BYTES, prot=mmap.PROT_READ)
        header = np.frombuffer(region, HEADER, count=1)[0]
        count, offset = int(header["machine"]["cpu_count"]), int(header["cpus_offset"])
        # A view of nothing but these: parsing a whole reading would be counted along.
        self._counters = np.frombuffer(region, CPU, count, offset)["guests"]["instructions"]

    def host(self) -> int:
        """Return what all CPUs have executed, without guests."""
        return int(self._counters[:, GUEST_HOST].sum())

    def on_cpu(self, cpu: int) -> tuple[int, int]:
        """Return what one CPU has executed for the host and for guests."""
        row = self._counters[cpu]
        return int(row[GUEST_HOST]), int(row[GUEST_HOST + 1 :].sum())

    def cost(self) -> Cost:
        """Return the measure "instructions of the host"."""

        def counted(work: Work) -> float:
            before = self.host()
            work()
            return float(self.host() - before)

        return Cost("_instructions", "instructions", counted)


@contextmanager
def counting() -> Iterator[Meter]:
    """Have the meter count in this block, which slows the emulator down."""
    subprocess.run(["vmp-meter", "on"], check=True)
    try:
        # Until everything is translated anew.
        time.sleep(1)
        yield Meter()
    finally:
        subprocess.run(["vmp-meter", "off"], check=True)


class BenchVm:
    """A VM of ``npages`` pages of 4 KiB or, if ``page_kib`` is 2048, of huge ones, all of them written.

    Page 0 holds its code and is never touched as data.
    """

    def __init__(self, npages: int, page_kib: int = 4) -> None:
        setattr(inside, "NPAGES", npages)  # noqa: B010 - a module that type checkers cannot see
        os.sched_setaffinity(0, {CPU_OF_NODE[0]})
        self.npages = npages
        self.hva: int = inside.memory(page_kib)
        self.vcpu = inside.Vcpu(self.hva)
        ctypes.memmove(self.hva, inside.CODE, len(inside.CODE))
        self.ram = RamRange(self.hva, npages, 0, 4096, Movability.MOVABLE, "bench")
        self.placement: Placement = open_placement(this_guest(self))
        self._bits = np.zeros(5 * npages // 64, np.uint64)
        self._nids = np.arange(4, dtype=np.int32)
        self.touch(1, npages)

    def touch(self, first: int, end: int, node: int = 0) -> None:
        """Have the vCPU write a word of each page, on a CPU of the node."""
        os.sched_setaffinity(0, {CPU_OF_NODE[node]})
        self.vcpu.execute(0, rax=7, rcx=end - first, rdx=4096, rsi=first * 4096)

    def roots(self, nodes: int, *, populate: bool = True) -> None:
        """Give nodes roots of their own."""
        native.placement_roots(self.placement.fd, nodes, populate)

    def harvest(self, npages: int | None = None, *, clear: bool = True) -> None:
        """Collect, and clear."""
        count = npages or self.npages
        native.placement_harvest(self.placement.fd, 0, count, 0, self._nids, self._bits, self._bits, clear)


def this_guest(vm: BenchVm) -> GuestTopology:
    """Return the VM as the agent knows guests."""
    return GuestTopology("bench", os.getpid(), read_start_time(os.getpid()), "kvm", (), (vm.ram,))
