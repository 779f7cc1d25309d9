"""Inside the emulated host: what a window of the agent costs with early readings; prints JSON.

All calls of source "kvm" and what the model makes of them, once in time, once in instructions of the host.
The control is the same window, read once.  A third of the touched pages is touched before each reading.
"""

import json
import statistics

from bench.kvm_vm import CPU_OF_NODE, TIME, BenchVm, Cost, Figures, counting, figure, this_guest
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import GuestPages
from vmplace.sampling.source import SourceSetup
from vmplace.sampling.source_kvm import KvmSource
from vmplace.topology.sysfs import read_host

NPAGES = 32768
READINGS, ROUNDS = 3, 6


class Windows:
    """Windows of one guest."""

    def __init__(self, vm: BenchVm, cost: Cost, *, shared: bool) -> None:
        self._vm, self._cost, self._guest, self._shared = vm, cost, this_guest(vm), shared
        self._source = KvmSource(SourceSetup(read_host()))
        self._pages: GuestPages | None = None

    def median(self, touched: int, *, early: bool) -> float:
        """Return the cost of a window in which each node touches so many pages, its own or the same."""
        self._pages = None
        costs = [self._one(touched, early=early) for _ in range(ROUNDS)]
        # The first one gives the guest its roots.
        return statistics.median(costs[1:])

    def close(self) -> None:
        """Take the roots off."""
        self._source.close()

    def _one(self, touched: int, *, early: bool) -> float:
        spent = self._cost.of(lambda: self._source.arm(self._guest))
        for part in range(READINGS):
            self._touch(touched * part // READINGS, touched * (part + 1) // READINGS)
            if early:
                spent += self._cost.of(lambda: self._source.read_early(self._guest))
        return spent + self._cost.of(self._harvest)

    def _touch(self, first: int, end: int) -> None:
        for node in range(len(CPU_OF_NODE)):
            base = 1 if self._shared else 1 + node * (NPAGES // len(CPU_OF_NODE))
            self._vm.touch(base + first, base + end, node)

    def _harvest(self) -> None:
        self._pages = absorbed(self._pages, self._source.harvest(self._guest))


def figures(vm: BenchVm, cost: Cost) -> Figures:
    """Return the costs of a window by what is touched."""
    reported: Figures = {}
    for name, touched, shared in (
        ("shared", NPAGES // 2, True),
        ("own", NPAGES // 8, False),
        ("few", NPAGES // 64, True),
    ):
        windows = Windows(vm, cost, shared=shared)
        value, control = (windows.median(touched, early=early) for early in (True, False))
        windows.close()
        reported[f"window_read_{1 + READINGS}_times_{name}{cost.suffix}"] = figure(
            value, control, f"{cost.unit} per {NPAGES} pages"
        )
    return reported


def main() -> None:
    """Print the figures."""
    vm = BenchVm(NPAGES)
    reported = figures(vm, TIME)
    with counting() as meter:
        reported |= figures(vm, meter.cost())
    print(json.dumps(reported))


if __name__ == "__main__":
    main()
