"""The kernel and the clock under what changes the host, and what an undo may take of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from vmplace.actuation.affinity import KernelCpus, ThreadCpus
from vmplace.actuation.batch import MoveKernel
from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import PROC
from vmplace.actuation.pinner import SYSFS
from vmplace.actuation.replica_calls import Ask, ask_kvm
from vmplace.errors import VmplaceError
from vmplace.topology.guest import GuestTopology
from vmplace.topology.placement import Placement, open_placement
from vmplace.topology.sysfs import read_node

RESERVE_RATIO, LEAST_RESERVE_BYTES = 0.005, 64 << 20
"""Of a node, what an undo leaves free, above the kernel's usual watermarks.

Plans keep 3 %.  A node that had less before vmplace would never get all its pages back then.
"""


@dataclass(frozen=True)
class HostCalls:
    """The kernel and the clock under the actuator; a simulated host has its own (simulate/agent_host.py).

    ``kernel`` None: the machine's.  ``clock`` in ns of CLOCK_MONOTONIC.
    """

    kernel: MoveKernel | None = None
    proc: Path = PROC
    clock: Callable[[], int] = time.monotonic_ns
    sleep: Callable[[float], None] = time.sleep
    opened: Callable[[GuestTopology, Path], Placement] = open_placement
    ask: Ask = ask_kvm
    threads: ThreadCpus = field(default_factory=KernelCpus)
    sysfs: Path = SYSFS

    def room_bytes(self, nid: int) -> int | None:
        """Return what an undo may put on a node: unused file cache gives way; None if it is not known."""
        if self.kernel is not None:
            return None
        try:
            node = read_node(nid, sysfs=self.sysfs)
        except (OSError, VmplaceError):
            return None
        reserve = max(LEAST_RESERVE_BYTES, int(RESERVE_RATIO * node.memory_bytes))
        return max(0, node.spare_bytes - reserve)


@dataclass(frozen=True)
class UndoAllowance:
    """Has an undo take from a budget, as moves do."""

    budget: Budget
    calls: HostCalls
    stop: Callable[[], bool]

    def wait(self, size_bytes: int) -> int:
        """Wait until so much, or as much as is ever there at once, may be moved."""
        size_bytes = min(size_bytes, int(self.budget.capacity_bytes))
        while not self.stop():
            now_ns = self.calls.clock()
            if self.budget.take(size_bytes, now_ns):
                return size_bytes
            wait_s = self.budget.wait_s(size_bytes, now_ns)
            if wait_s is None:
                return 0
            self.calls.sleep(min(wait_s, 0.05))
        return 0

    def refund(self, size_bytes: int) -> None:
        """Take back what was not moved."""
        self.budget.refund(size_bytes)
