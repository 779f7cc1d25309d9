"""Which share of its accesses will be local once a guest's part of a plan is done?

The estimate of model/traffic.py, with the hot pages where the plan has them.  A plan moves the hottest pages
of a node first, so what leaves a node, or gets copies, is taken to be hot as far as there is hot memory.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix
from vmplace.model.pages import GuestPages
from vmplace.model.traffic import vcpu_shares
from vmplace.policy.plan import Move, PlacementPlan, Replication
from vmplace.topology.guest import GuestTopology, RamRange
from vmplace.topology.host import HostTopology


def expected_lar(
    host: HostTopology, guest: GuestTopology, pages: GuestPages, plan: PlacementPlan
) -> float | None:
    """Return the LAR in [0, 1] after ``plan``, which is that guest's alone; None without a hot page."""
    cpus = {vcpu_id: cpus for move in plan.vcpu_moves for vcpu_id, cpus in move.cpus.items()}
    vcpus = tuple(replace(vcpu, cpus=cpus.get(vcpu.vcpu_id, vcpu.cpus)) for vcpu in guest.vcpus)
    local = total = 0.0
    for one in pages.ranges:
        mine = tuple(v for v in vcpus if one.ram.cell is None or v.cell in (one.ram.cell, None))
        shares = vcpu_shares(host, mine)
        hot = one.by_node(len(pages.nids), hot_only=True).astype(np.float64)
        moved = sum((_moved(move, one.ram, pages.nids) for move in plan.moves), np.zeros((len(hot),) * 2))
        leaving = moved.sum(axis=1)
        moved *= np.divide(np.minimum(leaving, hot), leaving, out=np.zeros_like(hot), where=leaving > 0)[
            :, None
        ]
        after = hot - moved.sum(axis=1) + moved.sum(axis=0)
        total += float(after.sum())
        for copy in (copy for copy in plan.replications if _is_of(copy, one.ram)):
            copied = np.minimum(_copied(copy, pages.nids), after)
            after -= copied
            local += float(copied.sum()) * sum(shares.get(nid, 0.0) for nid in copy.nids)
        local += float(
            sum(shares.get(nid, 0.0) * count for nid, count in zip(pages.nids, after, strict=True))
        )
    return local / total if total else None


def _is_of(copy: Replication, ram: RamRange) -> bool:
    return len(copy.hva) > 0 and ram.hva <= int(copy.hva[0]) < ram.hva + ram.size_bytes


def _copied(copy: Replication, nids: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return the 4 KiB pages that are to have copies, by index of the node that they lie on."""
    lie = np.array([copy.from_pages.get(nid, 0.0) for nid in nids])
    # What a guest's policy left out is taken to lie as the rest.
    return lie * min(copy.pages / max(float(lie.sum()), 1.0), 1.0)


def _moved(move: Move, ram: RamRange, nids: tuple[int, ...]) -> Matrix:
    """Return the 4 KiB pages of a range that a move takes, by index of the node they leave and go to."""
    pages = np.zeros((len(nids), len(nids)))
    inside = (move.hva >= ram.hva) & (move.hva < ram.hva + ram.size_bytes)
    where = [np.searchsorted(nids, of[inside]) for of in (move.from_nid, move.to_nid)]
    np.add.at(pages, tuple(where), move.npages[inside])
    return pages
