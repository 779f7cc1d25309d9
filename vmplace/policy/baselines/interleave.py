"""Where is memory if every guest is distributed over all nodes, whoever uses it?

What ``numactl --interleave=all`` gives a guest from its start, for one that already runs: the plain remedy
against uneven memory controllers, and the control that better policies are held against.
Differs: nodes that the operator excludes get nothing; pages lie at random rather than in turn.
"""

from vmplace.policy import home
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.topology.guest import RamRange
from vmplace.topology.host import HostTopology


def plan(snapshot: Snapshot) -> PlacementPlan:
    """Return the moves that deal every guest out evenly, within the snapshot's budget."""
    return home.plan_for(snapshot, even_target)


def even_target(host: HostTopology, guest: GuestView, ram: RamRange, allowed: tuple[int, ...]) -> home.Target:
    """Return even shares of the range for all allowed nodes."""
    del host, guest, ram
    return home.Target(dict.fromkeys(allowed, 1 / len(allowed)), "interleaved over all nodes")
