"""Which guests does the kernel's NUMA balancing place better than vmplace could on this host?

Where the source tells no nodes, nothing is known of who touches the pages of a guest that spans nodes:
vmplace leaves it alone.  The kernel's hint faults do tell.  Its switch is one for the whole host
(ownership.py), so it stays as it is while such a guest is managed.  Guests of one node are brought to the
same node by both.

Not so where a guest's memory is limited to nodes by its policy: the kernel knows nothing of that, and would
carry pages out of them.
"""

from collections.abc import Iterable

from vmplace.policy.plan import GuestView, Mode
from vmplace.topology.host import HostTopology


def left_to_kernel(host: HostTopology, guests: Iterable[GuestView]) -> tuple[str, ...]:
    """Return the names of guests that kernel balancing helps; none if it would work against a policy.

    ``guests``: those whose source tells no nodes, with their settings.
    """
    placed = [guest for guest in guests if guest.settings.mode is Mode.AUTO]
    if any(guest.settings.allowed_nids is not None for guest in placed):
        return ()
    return tuple(guest.topology.name for guest in placed if _spans(host, guest))


def _spans(host: HostTopology, guest: GuestView) -> bool:
    cpus = tuple({cpu for vcpu in guest.topology.vcpus for cpu in vcpu.cpus})
    return len(host.nids_of_cpus(cpus)) > 1
