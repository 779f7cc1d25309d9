"""Inside the emulated host: MOVE as the agent calls it against move_pages(2); prints JSON.

usage: python3 -m bench.kvm_moves PAGE_KIB [CALLS]    4 or 2048

A vCPU keeps touching the pages.  A stall is the longest that one touch took during one call.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from bench.kvm_probe import READ, WRITE, Probe, probing
from bench.kvm_vm import CPU_OF_NODE, BenchVm, Figures, Work, counting, figure
from vmplace.actuation.batch import MoveKernel, NativeKernel
from vmplace.actuation.gfn_kernel import GfnKernel

NPAGES = 8192
FIRST = 512
"""The first page that moves: page 0 has the probe's notes and, if it is huge, takes 511 along."""
MOVED = {4: 512, 2048: 2048}
"""Pages of 4 KiB in a call, by page size in KiB."""
SUFFIXES = {4: {WRITE: "", READ: "_read"}, 2048: {READ: "_huge", WRITE: "_huge_written"}}
"""How figures end, by page size and what the vCPU does."""
CALLS = 400
"""So many that a hundredth of them is no single call."""
WARM_UP = 2
COUNTED_SHARE = 100
"""One call in so many is made again, to count instructions."""


@dataclass
class Calls:
    """What the calls of one mover did."""

    moved: int = 0
    seconds: float = 0.0
    stalls_us: list[float] = field(default_factory=list)
    cost: float = 0.0


class Mover:
    """Moves the pages to the next node with each call."""

    def __init__(self, vm: BenchVm, page_kib: int) -> None:
        count = MOVED[page_kib]
        step = page_kib // 4
        self._frames = step
        self._hvas = np.arange(FIRST, FIRST + count, step, dtype=np.uint64) * np.uint64(4096) + np.uint64(
            vm.hva
        )
        self._nid = 0

    def move(self, kernel: MoveKernel, calls: Calls) -> None:
        """Move all pages, and note how many pages of 4 KiB did in which time."""
        self._nid = (self._nid + 1) % len(CPU_OF_NODE)
        nids = np.full(len(self._hvas), self._nid, np.int32)
        status = np.full(len(self._hvas), -1, np.int32)
        calls.seconds += kernel.move_pages(os.getpid(), self._hvas, nids, status) / 1e9
        calls.moved += int((status == nids).sum()) * self._frames


def no_cost(work: Work) -> float:
    """Only do it: how long a call takes, it tells itself."""
    work()
    return 0.0


def compare(
    vm: BenchVm, page_kib: int, probe: Probe, count: int, cost: Callable[[Work], float] = no_cost
) -> tuple[Calls, Calls]:
    """Have MOVE and move_pages(2) move the pages in turn, ``count`` times each.

    Each begins every other time: both go the same ways between the nodes, and some take longer.
    """
    mover, control = Mover(vm, page_kib), NativeKernel()
    kernel = GfnKernel(vm.placement, control)
    kernel.start_window()
    reported = Calls(), Calls()
    both: list[tuple[MoveKernel, Calls]] = [(kernel, reported[0]), (control, reported[1])]
    for turn in range(count):
        for one, calls in both if turn % 2 else reversed(both):
            with probe.watching(calls.stalls_us):
                calls.cost += cost(partial(mover.move, one, calls))
    return reported


def p99(values: list[float]) -> float:
    """Return the 99th percentile."""
    return float(np.percentile(values, 99))


def timed(reported: tuple[Calls, Calls], suffix: str) -> Figures:
    """Return the figures in time."""
    rates = [calls.moved / calls.seconds for calls in reported]
    stalls = [p99(calls.stalls_us) for calls in reported]
    middles = [statistics.median(calls.stalls_us) for calls in reported]
    return {
        f"move_rate_vs_syscall{suffix}": figure(rates[0], rates[1], "pages of 4 KiB/s"),
        f"move_stall_p99_vs_syscall{suffix}": figure(stalls[0], stalls[1], "us, longest of a call"),
        f"move_stall_median_vs_syscall{suffix}": figure(middles[0], middles[1], "us, longest of a call"),
    }


def counted(reported: tuple[Calls, Calls], suffix: str) -> Figures:
    """Return the figures in instructions."""
    value, control = (calls.cost / calls.moved for calls in reported)
    unit = "instructions per page of 4 KiB"
    return {f"move_rate_vs_syscall{suffix}_instructions": figure(value, control, unit)}


def main(page_kib: int, calls: int = CALLS) -> None:
    """Print the figures of pages of one size as JSON."""
    vm = BenchVm(NPAGES, page_kib)
    reported: Figures = {}
    for touch, suffix in SUFFIXES[page_kib].items():
        with probing(vm, FIRST, FIRST + MOVED[page_kib], touch) as probe:
            compare(vm, page_kib, probe, WARM_UP)
            reported |= timed(compare(vm, page_kib, probe, calls), suffix)
            with counting() as meter:
                cost = meter.cost().of
                reported |= counted(
                    compare(vm, page_kib, probe, max(1, calls // COUNTED_SHARE), cost), suffix
                )
    print(json.dumps(reported))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
