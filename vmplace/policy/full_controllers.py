"""When do samples decide where memory of a guest on one node lies?  While that node's controller is full.

1. All of its touches come from one node, so its memory belongs there (home.py); samples miss most of them.
   But where more than ``FILLED`` of the controller's bandwidth is asked for, accesses wait for each other,
   and other nodes' controllers can help (BWAP, section II).  Samples tell of the pages that are used most.
2. That lasts until the controller was not full for ``CALM_S``: a guest's memory would all go home in each
   calm phase, and out again after.  Pages come home earlier as far as that pays.
3. If a window shows nothing of such a guest, nothing of it moves.
4. Guests that go by their vCPUs are a load that the plan knows, and does not move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vmplace.policy import home
from vmplace.policy.plan import GuestView, Mode, Snapshot
from vmplace.topology.host import HostTopology

LINE_BYTES = 64
FILLED, CALM_S = 0.5, 600.0


@dataclass(frozen=True)
class Crowding:
    """By guest: the node of its vCPUs, and when that node's controller was last full."""

    full_s: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    def now(self, snapshot: Snapshot) -> "Crowding":
        """Return what holds for a snapshot; a guest that it has not may only be away for a while."""
        host, now_s = snapshot.host, snapshot.now_ns / 1e9
        shares = asked_shares(host, snapshot.guests)
        there = {guest.topology.name: guest for guest in snapshot.guests}
        kept = {
            name: (nid, at_s)
            for name, (nid, at_s) in self.full_s.items()
            if now_s - at_s < CALM_S and (name not in there or _may_be_on(host, there[name], nid))
        }
        full = {
            name: (nid, now_s)
            for name, guest in there.items()
            for nid in home.worker_nids(host, guest)
            if shares[nid] > FILLED and _may_be_on(host, guest, nid) and goes_home(host, guest)
            and guest.dram_per_us is not None
        }  # fmt: skip
        return Crowding(kept | full)

    def goes_by_vcpus(self, host: HostTopology, guest: GuestView) -> bool:
        """Tell whether the guest's vCPUs alone say where its memory belongs."""
        return guest.topology.name not in self.full_s and goes_home(host, guest)

    def waits(self, guest: GuestView) -> bool:
        """Tell whether a guest of which a window shows nothing stays, though its vCPUs run on one node."""
        return guest.topology.name in self.full_s and guest.settings.mode is not Mode.MANUAL


def _may_be_on(host: HostTopology, guest: GuestView, nid: int) -> bool:
    """Tell whether memory may leave the guest's node ``nid``; vCPUs that float for a while did not leave."""
    workers = home.worker_nids(host, guest)
    return guest.settings.interleaves and (len(workers) != 1 or workers == (nid,))


def goes_home(host: HostTopology, guest: GuestView) -> bool:
    """Tell whether all vCPUs run on one node, and little else is known.

    That is, only samples tell of its pages, or nobody counts its accesses.
    """
    return (guest.dram_per_us is None or _is_sampled(guest)) and len(home.worker_nids(host, guest)) == 1


def asked_shares(host: HostTopology, guests: Sequence[GuestView]) -> dict[int, float]:
    """Return, by node, which share of its controller's bandwidth the guests ask for that run there alone.

    It is 0 where no bandwidth is known.
    """
    asked = dict.fromkeys(host.nids, 0.0)
    for guest in guests:
        nids = home.worker_nids(host, guest)
        if len(nids) == 1 and guest.dram_per_us is not None:
            asked[nids[0]] += guest.dram_per_us * 1e6 * LINE_BYTES
    return {nid: one / (host.bandwidths.get((nid, nid)) or float("inf")) for nid, one in asked.items()}


def _is_sampled(guest: GuestView) -> bool:
    return guest.pages is not None and any(one.sampled for one in guest.pages.ranges)
