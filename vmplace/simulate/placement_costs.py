"""What does a change of placement cost?

Assumed, not measured (docs/simulate.md): a batch of pages is unmapped with one TLB flush, which holds up
all vCPUs of the guest; copying takes one vCPU's time.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PlacementCosts:
    """Costs in ns: of one vCPU per 4 KiB page that is moved or copied, or whose copies collapse; of all
    vCPUs per batch of ``HUGE_PAGES``; of the guest when vCPUs move.
    """

    move_ns: float = 2000.0
    collapse_ns: float = 8000.0
    flush_ns: float = 5000.0
    vcpu_move_ns: float = 50_000.0


FREE = PlacementCosts(0.0, 0.0, 0.0, 0.0)
