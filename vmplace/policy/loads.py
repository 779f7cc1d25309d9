"""Guests whose memory goes where their vCPUs run: the plan moves nothing of them, but others feel them."""

import numpy as np

from vmplace.model.described_memory import MLP
from vmplace.policy import home
from vmplace.policy.full_controllers import home_nid
from vmplace.policy.host_view import GuestEvidence, NodeIndexes
from vmplace.policy.plan import GuestView, Mode, Snapshot
from vmplace.topology.guest import Movability

ENTRIES = 64
"""The descent looks at every n-th entry where there are many: up to 2 TiB it errs by a fifth here."""


def is_load(snapshot: Snapshot, guest: GuestView) -> bool:
    """Tell whether the guest runs on one node, and its accesses are counted."""
    has_count = guest.dram_per_us is not None and guest.settings.mode is not Mode.MANUAL
    return has_count and home_nid(snapshot.host, guest) is not None


def load(  # noqa: PLR0913 - all that a planner knows of a guest
    snapshot: Snapshot,
    guest: GuestView,
    accesses: float,
    parallelism: float,
    bound: float | None,
    *,
    stays: bool,
) -> GuestEvidence:
    """Return evidence of so many accesses of the guest; no plan moves any page by it.

    ``stays``: its memory does not go home now.
    """
    host = snapshot.host
    worker = np.isin(host.nids, home.worker_nids(host, guest))
    heat = np.tile(worker * accesses / ENTRIES, (ENTRIES, 1))
    return GuestEvidence(
        name=guest.topology.name,
        heat=heat,
        written=np.ones(ENTRIES, np.bool_),
        node=_places(snapshot, guest, stays=stays),
        worker=worker,
        windows=np.ones(ENTRIES, np.int64),
        read_ratio=None,
        parallelism=parallelism,
        think_ns=1.0,
        mlp=MLP,
        recent=heat,
        slowdown_bound=bound,
        allowed=np.zeros(len(host.nids), np.bool_),
        is_counted=guest.dram_per_us is not None,
    )


def _places(snapshot: Snapshot, guest: GuestView, *, stays: bool) -> NodeIndexes:
    """Return nodes in the proportions in which they hold the guest's pages; what can go home is there."""
    nids, at = snapshot.host.nids, home_nid(snapshot.host, guest)
    is_home = np.array([nid == at for nid in nids], float)
    room = 0.0 if stays or at is None else home.room_pages(snapshot.host)[at]
    pages = np.zeros(len(nids))
    for one in guest.pages.ranges if guest.pages and guest.pages.nids == nids else ():
        here = one.by_node(len(nids)).astype(float)
        away = here.sum() - float(here @ is_home)
        if away <= room and one.ram.movability is Movability.MOVABLE:
            here, room = here.sum() * is_home, room - away
        pages += here
    pages = pages if pages.any() else is_home
    middles = (np.arange(ENTRIES) + 0.5) / ENTRIES
    places: NodeIndexes = np.searchsorted(np.cumsum(pages) / pages.sum(), middles).astype(np.int8)
    return places
