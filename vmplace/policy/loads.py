"""Guests whose memory goes where their vCPUs run: the plan moves nothing of them, but others feel them."""

import numpy as np

from vmplace.model.described_memory import MLP
from vmplace.policy import home
from vmplace.policy.full_controllers import home_nid
from vmplace.policy.host_view import GuestEvidence, NodeIndexes
from vmplace.policy.plan import GuestView, Mode, Snapshot

ENTRIES = 64
"""The descent looks at every n-th entry where there are many: up to 2 TiB it errs by a fifth here."""


def is_load(snapshot: Snapshot, guest: GuestView) -> bool:
    """Tell whether the guest runs on one node, and its accesses are counted."""
    has_count = guest.dram_per_us is not None and guest.settings.mode is not Mode.MANUAL
    return has_count and home_nid(snapshot.host, guest) is not None


def load(
    snapshot: Snapshot, guest: GuestView, accesses: float, parallelism: float, bound: float | None
) -> GuestEvidence:
    """Return evidence of so many accesses of the guest to where its pages lie; no plan moves any by it."""
    host = snapshot.host
    worker = np.isin(host.nids, home.worker_nids(host, guest))
    heat = np.tile(worker * accesses / ENTRIES, (ENTRIES, 1))
    return GuestEvidence(
        name=guest.topology.name,
        heat=heat,
        written=np.ones(ENTRIES, np.bool_),
        node=_places(snapshot, guest),
        worker=worker,
        windows=np.ones(ENTRIES, np.int64),
        read_ratio=None,
        parallelism=parallelism,
        think_ns=1.0,
        mlp=MLP,
        recent=heat,
        slowdown_bound=bound,
        allowed=np.zeros(len(host.nids), np.bool_),
    )


def _places(snapshot: Snapshot, guest: GuestView) -> NodeIndexes:
    """Return nodes in the proportions in which they hold the guest's pages; its home if no place is known."""
    nids = snapshot.host.nids
    by_node = {} if guest.pages is None else guest.pages.pages_by_node()
    pages = np.array([by_node.get(nid, 0) for nid in nids], float)
    if not pages.sum():
        pages = np.array([nid == home_nid(snapshot.host, guest) for nid in nids], float)
    middles = (np.arange(ENTRIES) + 0.5) / ENTRIES
    places: NodeIndexes = np.searchsorted(np.cumsum(pages) / pages.sum(), middles).astype(np.int8)
    return places
