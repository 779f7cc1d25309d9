"""Guests whose memory goes where their vCPUs run: the plan moves nothing of them, but others feel them."""

import numpy as np

from vmplace.model.described_memory import MLP
from vmplace.policy import home
from vmplace.policy.host_view import GuestEvidence
from vmplace.policy.plan import GuestView, Mode, Snapshot

ENTRIES = 64
"""The descent looks at every n-th entry on large hosts: of so many, some are always left."""


def is_load(snapshot: Snapshot, guest: GuestView) -> bool:
    """Tell whether the guest runs on one node, its memory is there or comes there, and its accesses count."""
    host = snapshot.host
    return (
        guest.dram_per_us is not None
        and guest.settings.mode is not Mode.MANUAL
        and len(home.worker_nids(host, guest)) == 1
        and bool(home.allowed_nids(host, guest))
    )


def load(
    snapshot: Snapshot, guest: GuestView, accesses: float, parallelism: float, bound: float | None
) -> GuestEvidence:
    """Return so many accesses of the guest to memory at its home, as evidence that nothing moves by."""
    host = snapshot.host
    (worker,) = home.worker_nids(host, guest)
    at = home.nearest(host, worker, home.allowed_nids(host, guest))
    is_worker, is_home = (np.array([nid == one for nid in host.nids]) for one in (worker, at))
    heat = np.tile(is_worker * accesses / ENTRIES, (ENTRIES, 1))
    return GuestEvidence(
        name=guest.topology.name,
        heat=heat,
        written=np.ones(ENTRIES, np.bool_),
        node=np.full(ENTRIES, host.nids.index(at), np.int8),
        worker=is_worker,
        windows=np.ones(ENTRIES, np.int64),
        read_ratio=None,
        parallelism=parallelism,
        think_ns=1.0,
        mlp=MLP,
        recent=heat,
        slowdown_bound=bound,
        allowed=is_home,
    )
