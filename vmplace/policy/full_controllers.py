"""When do samples decide where memory of a guest on one node lies?  While its controller there is full.

1. All of its touches come from one node, so its memory belongs there (home.py); samples miss most of them.
   But where more than ``FILLED`` of the controller's bandwidth is asked for, accesses wait for each other,
   and other nodes' controllers can help (BWAP, section II).  Samples tell of the pages that are used most.
   The smallest guests have no part in it, that together ask for ``LEAST``: their memory is no relief.
2. That lasts until the controller was not full for ``CALM_S``: a guest's memory would all go home in each
   calm phase, and out again after.  Pages come home earlier as far as that pays.
3. If a window shows nothing of such a guest, nothing of it moves.
4. Guests that go by their vCPUs are then a load that the plan knows, and does not move (loads.py).  So is one
   that asks for more than ``LEAST`` of a controller of which all would ask for more than ``FELT`` if guests
   that span nodes had their memory spread evenly: else its node seems to have time for more.  Where their
   memory is now does not count: it leaves because of that load, and would come back once that is forgotten.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vmplace.policy import home
from vmplace.policy.plan import GuestView, Mode, Snapshot
from vmplace.topology.guest import Identity
from vmplace.topology.host import HostTopology

LINE_BYTES = 64
FILLED, LEAST, CALM_S = 0.5, 0.1, 600.0
FELT, STILL = 0.7, 0.7
"""So much of a guest's controller has to be asked for by all until the plan knows the guest as a load: below
that, others would give way for next to nothing.  It does so while it asks for this share of ``LEAST``."""

Ask = tuple[float, int, GuestView]
"""Which share of its home's bandwidth a guest asks for, that node, and the guest."""


@dataclass(frozen=True)
class Crowding:
    """By guest: the node where its memory is at home, and when that node's controller was last full.

    ``felt_s``: the same of guests that have a part in what all guests ask of it, by identity.
    """

    full_s: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    felt_s: Mapping[Identity, tuple[int, float]] = field(default_factory=dict)

    def now(self, snapshot: Snapshot) -> "Crowding":
        """Return what holds for a snapshot; a guest that it has not may only be away for a while."""
        host, now_s = snapshot.host, snapshot.now_ns / 1e9
        there = {guest.topology.name: guest for guest in snapshot.guests}
        full_s = {
            name: (nid, at_s)
            for name, (nid, at_s) in self.full_s.items()
            if now_s - at_s < CALM_S and (name not in there or _may_leave(host, there[name], nid))
        }
        if not any(map(_is_sampled, snapshot.guests)):
            return Crowding(full_s)
        asks = asks_of(host, snapshot.guests)
        shares, small = asked_shares(host, asks), dict.fromkeys(host.nids, 0.0)
        felt_s = self._felt(asks, asked_if_even(host, snapshot.guests, shares), now_s)
        for share, nid, guest in asks:
            small[nid] += share
            is_part = shares[nid] > FILLED and small[nid] > LEAST
            if is_part and _may_leave(host, guest, nid) and goes_home(host, guest):
                full_s[guest.topology.name] = nid, now_s
        return Crowding(full_s, felt_s)

    def _felt(
        self, asks: Sequence[Ask], asked: Mapping[int, float], now_s: float
    ) -> dict[Identity, tuple[int, float]]:
        """Return who is felt at home, and when it was last; one that became quiet is not at once."""
        felt_s = {}
        for share, nid, guest in asks:
            before, at_s = self.felt_s.get(guest.topology.identity, (nid, -math.inf))
            if share > LEAST and asked[nid] > FELT:
                felt_s[guest.topology.identity] = nid, now_s
            elif share > STILL * LEAST and before == nid and now_s - at_s < CALM_S:
                felt_s[guest.topology.identity] = nid, at_s
        return felt_s

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


def asked_if_even(
    host: HostTopology, guests: Sequence[GuestView], at_home: Mapping[int, float]
) -> dict[int, float]:
    """Return the same with what guests that span nodes ask for, if their memory were spread evenly."""
    asked = dict(at_home)
    for guest in guests:
        nids = _spread_nids(host, guest)
        if guest.dram_per_us and nids and home_nid(host, guest) is None:
            each_per_s = guest.dram_per_us * 1e6 * LINE_BYTES / len(nids)
            for nid in nids:
                asked[nid] += each_per_s / (host.bandwidths.get((nid, nid)) or math.inf)
    return asked


def _spread_nids(host: HostTopology, guest: GuestView) -> tuple[int, ...]:
    """Return the nodes that a plan may spread the guest's memory over, if it does."""
    allowed = home.allowed_nids(host, guest)
    if guest.settings.interleaves or not allowed:
        return allowed
    return tuple({home.nearest(host, nid, allowed) for nid in home.worker_nids(host, guest)})


def _is_sampled(guest: GuestView) -> bool:
    return guest.pages is not None and any(one.sampled for one in guest.pages.ranges)
