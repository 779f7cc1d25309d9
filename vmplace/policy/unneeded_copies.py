"""Whose copies are to go?  Those of guests whose vCPUs have come to one node, or whose policy allows none.

Copies are for several nodes that read the same pages.  Once all of a guest's vCPUs may run on one node only,
its copies take memory for nothing, whatever else the plan does with the guest.  What counts is where vCPUs
may run, not where they happen to be.  Those that are about to float again, or are tied by this plan and not
yet there, keep their copies: else these would be dropped, and made again.  One look alone decides nothing,
and nothing is dropped while it is not known of each vCPU where it may run.  What the operator said of the
guest needs no second look.
"""

from collections.abc import Iterable

import numpy as np

from vmplace.policy.plan import Collapse, GuestView, Mode, Snapshot, VcpuMove
from vmplace.topology.guest import Identity
from vmplace.topology.host import HostTopology

ON_ONE_NODE = "its vCPUs run on node {} alone, and copies serve several nodes"
NOT_ALLOWED = "its policy allows no copies"
MOST_NPAGES = np.iinfo(np.int32).max


class UnneededCopies:
    """Whose vCPUs were on one node at the last plan, and on which."""

    def __init__(self) -> None:
        self._before: dict[Identity, int] = {}

    def drops(self, now: Snapshot, after: Snapshot, vcpu_moves: Iterable[VcpuMove]) -> tuple[Collapse, ...]:
        """Return the drops of all copies of guests that are, and were, on one node, or may have none.

        ``after``: the same guests, as they will be once ``vcpu_moves`` are done.
        """
        leaving = {move.guest for move in vcpu_moves if move.nid is None}
        before, self._before = self._before, {}
        found = []
        for guest, then in zip(now.guests, after.guests, strict=True):
            nid = None if guest.topology.name in leaving else _only_nid(now.host, guest, then)
            why = None if guest.settings.may_copy else NOT_ALLOWED
            if nid is not None:
                self._before[guest.topology.identity] = nid
                if before.get(guest.topology.identity) == nid:
                    why = why or ON_ONE_NODE.format(nid)
            if why and guest.copied_bytes and guest.settings.mode is not Mode.MANUAL:
                found.append(_drop_of(guest, why))
        return tuple(found)


def _only_nid(host: HostTopology, *views: GuestView) -> int | None:
    """Return the node on which all vCPUs may run, in each view; None: there are more, or it is not known."""
    cpus = [vcpu.cpus for view in views for vcpu in view.topology.vcpus]
    nids = {host.nid_of_cpu(cpu) for some in cpus for cpu in some}
    return nids.pop() if len(nids) == 1 and all(cpus) else None


def _drop_of(guest: GuestView, why: str) -> Collapse:
    hva = np.array([ram.hva for ram in guest.topology.ram], np.uint64)
    # All copies go: what a range has beyond 8 TiB need not be in figures.
    npages = np.array([min(ram.npages, MOST_NPAGES) for ram in guest.topology.ram], np.int32)
    return Collapse(guest.topology.name, hva, npages, why, is_all=True, copied_bytes=guest.copied_bytes or 0)
