"""When do samples decide where memory of a guest on one node lies?  While its controller there is full.

1. All of its touches come from one node, so its memory belongs there (home.py); samples miss most of them.
   But where more than ``FILLED`` of the controller's bandwidth is asked for, accesses wait for each other,
   and other nodes' controllers can help (BWAP, section II).  Samples tell of the pages that are used most.
   The smallest guests have no part in it, that together ask for ``LEAST``: their memory is no relief.
2. That lasts until the controller was not full for ``CALM_S``: a guest's memory would all go home in each
   calm phase, and out again after.  Pages come home earlier as far as that pays.
3. If a window shows nothing of such a guest, nothing of it moves.
4. Guests that go by their vCPUs are then a load that the plan knows, and does not move (loads.py).  So they
   are where guests that span nodes fill their controller, if they have a part in that: else it seems to have
   time for more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vmplace.model.metrics import Matrix
from vmplace.policy import home
from vmplace.policy.plan import GuestView, Mode, Snapshot
from vmplace.topology.host import HostTopology

LINE_BYTES = 64
FILLED, LEAST, CALM_S = 0.5, 0.1, 600.0

Ask = tuple[float, int, GuestView]
"""Which share of its home's bandwidth a guest asks for, that node, and the guest."""


@dataclass(frozen=True)
class Crowding:
    """By guest: the node where its memory is at home, and when that node's controller was last full.

    ``felt_s``: when it was last full by the accesses of all guests, of guests that have a part in that.
    """

    full_s: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    felt_s: Mapping[str, float] = field(default_factory=dict)

    def now(self, snapshot: Snapshot) -> "Crowding":
        """Return what holds for a snapshot; a guest that it has not may only be away for a while."""
        host, now_s = snapshot.host, snapshot.now_ns / 1e9
        there = {guest.topology.name: guest for guest in snapshot.guests}
        full_s = {
            name: (nid, at_s)
            for name, (nid, at_s) in self.full_s.items()
            if now_s - at_s < CALM_S and (name not in there or _may_leave(host, there[name], nid))
        }
        felt_s = {name: at_s for name, at_s in self.felt_s.items() if now_s - at_s < CALM_S}
        before = Crowding(full_s, felt_s)
        is_asked = any(map(_is_sampled, snapshot.guests))
        return before._with_full(host, snapshot.guests, now_s) if is_asked else before

    def _with_full(self, host: HostTopology, guests: Sequence[GuestView], now_s: float) -> "Crowding":
        """Return the same with the guests whose controller is full now."""
        asks, full_s, felt_s = asks_of(host, guests), dict(self.full_s), dict(self.felt_s)
        shares, small = asked_shares(host, asks), dict.fromkeys(host.nids, 0.0)
        of_all = asked_of_all(host, guests, shares)
        for share, nid, guest in asks:
            small[nid] += share
            is_part = small[nid] > LEAST
            if is_part and of_all[nid] > FILLED:
                felt_s[guest.topology.name] = now_s
            if is_part and shares[nid] > FILLED and _may_leave(host, guest, nid) and goes_home(host, guest):
                full_s[guest.topology.name] = nid, now_s
        return Crowding(full_s, felt_s)

    def goes_by_vcpus(self, host: HostTopology, guest: GuestView) -> bool:
        """Tell whether the guest's vCPUs alone say where its memory belongs."""
        return guest.topology.name not in self.full_s and goes_home(host, guest)

    def waits(self, guest: GuestView) -> bool:
        """Tell whether a guest of which a window shows nothing stays, though its vCPUs run on one node."""
        return guest.topology.name in self.full_s and guest.settings.mode is not Mode.MANUAL


def home_nid(host: HostTopology, guest: GuestView) -> int | None:
    """Return the node where memory of the guest is at home; None if its vCPUs run on several nodes."""
    workers, allowed = home.worker_nids(host, guest), home.allowed_nids(host, guest)
    return home.nearest(host, workers[0], allowed) if len(workers) == 1 and allowed else None


def _may_leave(host: HostTopology, guest: GuestView, nid: int) -> bool:
    """Tell whether memory may leave the guest's home ``nid``; vCPUs that float for a while have no other."""
    return guest.settings.interleaves and home_nid(host, guest) in {None, nid}


def goes_home(host: HostTopology, guest: GuestView) -> bool:
    """Tell whether all vCPUs run on one node, and little else is known.

    That is, only samples tell of its pages, or nobody counts its accesses.
    """
    return (guest.dram_per_us is None or _is_sampled(guest)) and len(home.worker_nids(host, guest)) == 1


def asks_of(host: HostTopology, guests: Sequence[GuestView]) -> list[Ask]:
    """Return what guests ask for that are at home on one node alone, the smallest first.

    It is 0 where nobody counts, or no bandwidth is known.
    """
    asks = []
    for guest in guests:
        nid = home_nid(host, guest)
        if nid is not None:
            bytes_per_s = (guest.dram_per_us or 0.0) * 1e6 * LINE_BYTES
            asks.append((bytes_per_s / (host.bandwidths.get((nid, nid)) or float("inf")), nid, guest))
    return sorted(asks, key=lambda ask: ask[0])


def asked_shares(host: HostTopology, asks: Sequence[Ask]) -> dict[int, float]:
    """Return, by node, which share of its controller's bandwidth is asked for."""
    asked = dict.fromkeys(host.nids, 0.0)
    for share, nid, _ in asks:
        asked[nid] += share
    return asked


def asked_of_all(
    host: HostTopology, guests: Sequence[GuestView], at_home: Mapping[int, float]
) -> dict[int, float]:
    """Return the same with what guests that span nodes ask for, by where the pages lie that they use."""
    asked = dict(at_home)
    for guest in guests:
        if guest.dram_per_us and home_nid(host, guest) is None:
            used = _used_pages(host, guest)
            for nid, pages in zip(host.nids, used.tolist(), strict=True):
                bytes_per_s = guest.dram_per_us * 1e6 * LINE_BYTES * pages / max(float(used.sum()), 1.0)
                asked[nid] += bytes_per_s / (host.bandwidths.get((nid, nid)) or math.inf)
    return asked


def _used_pages(host: HostTopology, guest: GuestView) -> Matrix:
    """Return how many of the guest's pages [N] are on each node, of those that were seen to be used."""
    count = len(host.nids)
    used = np.zeros(count)
    for one in guest.pages.ranges if guest.pages and guest.pages.nids == host.nids else ():
        used += one.by_node(count, hot_only=True)
    return used


def _is_sampled(guest: GuestView) -> bool:
    return guest.pages is not None and any(one.sampled for one in guest.pages.ranges)
