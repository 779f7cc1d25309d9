"""What does a change of placement cost?

Assumed, not measured (docs/simulate.md): a batch of pages is unmapped with one TLB flush, which holds up
all vCPUs of the guest; copying takes one vCPU's time.
"""

from dataclasses import dataclass

from vmplace.policy.host_view import moved_as


@dataclass(frozen=True)
class PlacementCosts:
    """Costs in ns: of one vCPU per 4 KiB page that is moved or copied, or whose copies collapse; of all
    vCPUs per batch of ``HUGE_PAGES``; of the guest when vCPUs move.
    """

    move_ns: float = 2000.0
    collapse_ns: float = 8000.0
    flush_ns: float = 5000.0
    vcpu_move_ns: float = 50_000.0

    def unit_ns(self, pages: int) -> float:
        """Return what a vCPU pays for a page of so many 4 KiB: it is unmapped once, and copied in full."""
        return self.move_ns * float(moved_as(pages))


FREE = PlacementCosts(0.0, 0.0, 0.0, 0.0)
