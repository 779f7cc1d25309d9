"""Whose copies serve nobody any more?  Those of guests whose vCPUs have come to one node.

Copies are for several nodes that read the same pages.  Once all of a guest's vCPUs may run on one node only,
its copies take memory for nothing, whatever else the plan does with the guest.  What counts is where vCPUs
may run, not where they happen to be.  Those that are about to float again, or are tied by this plan and not
yet there, keep their copies: else these would be dropped, and made again.
"""

from collections.abc import Iterable

import numpy as np

from vmplace.policy import home
from vmplace.policy.plan import Collapse, GuestView, Mode, Snapshot, VcpuMove

ON_ONE_NODE = "its vCPUs run on node {} alone, and copies serve several nodes"


def lone_copies(now: Snapshot, after: Snapshot, vcpu_moves: Iterable[VcpuMove]) -> tuple[Collapse, ...]:
    """Return the drops of all copies of such guests.

    ``after``: the same guests, as they will be once ``vcpu_moves`` are done.
    """
    leaving = {move.guest for move in vcpu_moves if move.nid is None}
    return tuple(
        _drop_of(guest, home.worker_nids(now.host, guest)[0])
        for guest, then in zip(now.guests, after.guests, strict=True)
        if guest.copied_bytes
        and guest.settings.mode is not Mode.MANUAL
        and guest.topology.name not in leaving
        and all(len(home.worker_nids(now.host, one)) == 1 for one in (guest, then))
    )


def _drop_of(guest: GuestView, nid: int) -> Collapse:
    hva = np.array([ram.hva for ram in guest.topology.ram], np.uint64)
    npages = np.array([ram.npages for ram in guest.topology.ram], np.int32)
    return Collapse(guest.topology.name, hva, npages, ON_ONE_NODE.format(nid), is_all=True)
