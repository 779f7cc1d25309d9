"""When do samples decide where memory of a guest on one node lies?  While its host's controllers are full.

1. All of its touches come from one node, so its memory belongs there (home.py); samples miss most of them.
   But where more than ``FILLED`` of a controller's bandwidth is asked for, accesses wait for each other, and
   other nodes' controllers can help (BWAP, section II).  Samples tell of the pages that are used most.  All
   guests of the host then take part, as the plan has to know who asks for what, until less than ``FREED``
   is asked for.
2. A guest whose memory such a plan sent away stays under it, as long as some is away and the vCPUs run where
   they did: pages come home as far as that pays.  By its vCPUs alone all would go home in each calm phase.
3. If a window shows nothing of such a guest, nothing of it moves.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vmplace.policy import home
from vmplace.policy.host_view import NodeIndexes
from vmplace.policy.plan import GuestView, Mode, Snapshot
from vmplace.topology.host import HostTopology

LINE_BYTES = 64
FILLED, FREED = 0.5, 0.25


@dataclass(frozen=True)
class Crowding:
    """Whether a controller is full; ``spread``: guests whose memory was sent away, and their vCPUs' node."""

    is_full: bool = False
    spread: Mapping[str, int] = field(default_factory=dict)

    def now(self, snapshot: Snapshot, known: Iterable[str]) -> "Crowding":
        """Return what holds for a snapshot; of guests that it has not, those that are ``known`` remain."""
        is_full = filled_share(snapshot.host, snapshot.guests) > (FREED if self.is_full else FILLED)
        there = {guest.topology.name: home.worker_nids(snapshot.host, guest) for guest in snapshot.guests}
        absent = {*known} - there.keys()
        # vCPUs that float for a while are no other node.
        spread = {
            name: nid
            for name, nid in self.spread.items()
            if name in absent or (name in there and (len(there[name]) != 1 or there[name] == (nid,)))
        }
        return Crowding(is_full, spread)

    def goes_by_vcpus(self, host: HostTopology, guest: GuestView) -> bool:
        """Tell whether the guest's vCPUs alone say where its memory belongs."""
        if guest.topology.name in self.spread:
            return False
        return goes_home(host, guest) and not (self.is_full and guest.dram_per_us is not None)

    def waits(self, host: HostTopology, guest: GuestView) -> bool:
        """Tell whether a guest of which a window shows nothing stays, though its vCPUs run on one node."""
        if guest.settings.mode is Mode.MANUAL or self.goes_by_vcpus(host, guest):
            return False
        return guest.topology.name in self.spread or goes_home(host, guest)

    def after(
        self, snapshot: Snapshot, planned: Iterable[tuple[GuestView, NodeIndexes, NodeIndexes]]
    ) -> "Crowding":
        """Return what holds after the plan: of each guest, where entries were at first, and are to be."""
        spread, host = dict(self.spread), snapshot.host
        for guest, origin, places in planned:
            name, workers = guest.topology.name, home.worker_nids(host, guest)
            if len(workers) != 1:
                continue
            mine = host.nids.index(home.nearest(host, workers[0], home.allowed_nids(host, guest)))
            is_sent = bool(((origin == mine) & (places >= 0) & (places != mine)).any())
            if is_sent and goes_home(host, guest):
                spread[name] = workers[0]
            elif not is_sent:
                spread.pop(name, None)
        return replace(self, spread=spread)


def goes_home(host: HostTopology, guest: GuestView) -> bool:
    """Tell whether all vCPUs run on one node, and little else is known.

    That is, only samples tell of its pages, or nobody counts its accesses.
    """
    return (guest.dram_per_us is None or _is_sampled(guest)) and len(home.worker_nids(host, guest)) == 1


def filled_share(host: HostTopology, guests: Sequence[GuestView]) -> float:
    """Return the most that guests on one node together ask of its controller, as a share of its bandwidth.

    It is 0 unless samples tell of some guest's pages, and where no bandwidth is known.
    """
    if not host.bandwidths or not any(map(_is_sampled, guests)):
        return 0.0
    asked = dict.fromkeys(host.nids, 0.0)
    for guest in guests:
        nids = home.worker_nids(host, guest)
        if len(nids) == 1 and guest.dram_per_us is not None:
            asked[nids[0]] += guest.dram_per_us * 1e6 * LINE_BYTES
    return max(one / (host.bandwidths.get((nid, nid)) or float("inf")) for nid, one in asked.items())


def _is_sampled(guest: GuestView) -> bool:
    return guest.pages is not None and any(one.sampled for one in guest.pages.ranges)
