"""What do the counters of a simulated guest's vCPUs tell: of all so far, and of this moment?"""

from dataclasses import dataclass, field

import numpy as np

from vmplace.model.memory_system import Load
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import Counters
from vmplace.simulate.guest_run import GuestRun

INSTRUCTIONS_PER_ACCESS = 3.0
"""Of an access before any cache (guest_run.py, ACCESS_NS)."""


@dataclass
class GuestCounters:
    """What one guest did so far, as counters of its vCPUs tell: exact sums, times in ns of the trace.

    ``by_node``: of ``dram``, those of vCPUs on each node.
    """

    instructions: float = 0.0
    vcpu_ns: float = 0.0
    dram: float = 0.0
    span_ns: float = 0.0
    local: float = 0.0
    by_node: Matrix = field(default_factory=lambda: np.zeros(1))

    def add(self, guest: GuestRun, share: float, span: float) -> None:
        """Count ``share`` of the guest's present window, which took ``span``."""
        self.instructions += guest.raw_accesses * share * INSTRUCTIONS_PER_ACCESS
        self.vcpu_ns += guest.parallelism * span
        self.dram += guest.accesses * share
        self.span_ns += span
        # Once for all of a window: its pages may move while it lasts.
        self.local += float(np.trace(guest.traffic)) * share
        self.by_node = self.by_node + guest.traffic.sum(axis=1) * share


def counters_now(guest: GuestRun, load: Load, index: int) -> Counters:
    """Return what the agent reads of a guest, which is number ``index`` of those that make the load."""
    rate, latency = float(load.rates[index]), float(load.latencies[index])
    return Counters(
        accesses=guest.traffic * (rate / guest.accesses),
        latency_ns=latency,
        busy_share=guest.think_ns / (guest.think_ns + latency / guest.spec.mlp),
        read_ratio=guest.read_ratio,
        faults_per_s=len(guest.fresh) * rate / guest.accesses * 1e9,
    )
