"""Guests whose memory goes where their vCPUs run: the plan moves nothing of them, but others feel them."""

from collections.abc import Iterable, Sequence

import numpy as np

from vmplace.model.described_memory import MLP
from vmplace.policy import home
from vmplace.policy.full_controllers import Crowding, home_nid
from vmplace.policy.host_view import GuestEvidence, NodeIndexes
from vmplace.policy.plan import GuestView, Mode, Snapshot
from vmplace.topology.guest import Movability

ENTRIES = 64
"""The descent looks at every n-th entry where there are many: up to 2 TiB it errs by a fifth here."""


def loads_of(
    snapshot: Snapshot, planned: Sequence[GuestView], rest: Iterable[GuestView], crowding: Crowding
) -> list[GuestView]:
    """Return those of ``rest`` that the plan is to know as loads.

    Where no controller is full it knows none: the others would give way to protected guests that lack nothing
    (docs/design/joint-plan.md).
    """
    has_full = any(guest.topology.name in crowding.full_s for guest in planned)
    felt = [one for one in rest if has_full or one.topology.identity in crowding.felt_s]
    return [one for one in felt if _is_counted(one) and home_nid(snapshot.host, one) is not None]


def _is_counted(guest: GuestView) -> bool:
    return guest.dram_per_us is not None and guest.settings.mode is not Mode.MANUAL


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
