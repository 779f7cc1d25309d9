"""Does the source know the nodes that the host has now?  It was opened for those of the agent's start."""

from vmplace.policy.plan import GuestView, Snapshot
from vmplace.topology.host import HostTopology

CURE = "restart vmplace: {} since it started, so nothing tells any more which node touches a page"
UNKNOWN = "nothing tells which of its vCPUs' nodes touches a page: {} since vmplace started"


def changed_nodes(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the note on nodes that came or went since the source was opened."""
    changes = [change for guest in snapshot.guests if (change := node_change(snapshot.host, guest))]
    return (CURE.format(changes[0]),) if changes else ()


def node_change(host: HostTopology, guest: GuestView) -> str | None:
    """Return which nodes came or went since the guest's source was opened, in words; None for none."""
    if guest.pages is None or guest.pages.nids == host.nids:
        return None
    came, went = set(host.nids) - set(guest.pages.nids), set(guest.pages.nids) - set(host.nids)
    changes = (f"{_named(came)} came online" if came else "", f"{_named(went)} went offline" if went else "")
    return " and ".join(filter(None, changes))


def _named(nids: set[int]) -> str:
    return f"node{'s' if len(nids) > 1 else ''} {', '.join(map(str, sorted(nids)))}"
