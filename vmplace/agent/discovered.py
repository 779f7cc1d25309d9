"""What a look for guests found: the guests, and notes for people."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vmplace.topology.domain_policy import DomainPolicy, Numatune
from vmplace.topology.guest import GuestTopology


@dataclass(frozen=True)
class Discovered:
    """The guests of this moment, and what a person should know about how they were found.

    ``policies``: what domains' XML says, by UUID; ``awaited``: UUIDs of which libvirt has yet to tell;
    ``migrating``: UUIDs of those that leave or arrive.  ``stated`` and ``stated_migrating``: the same
    by process, of guests that another libvirt than this host's keeps.  ``bound``: the nodes that QEMU binds
    memory to, by process, of guests that this host's libvirt does not describe.
    """

    guests: tuple[GuestTopology, ...]
    notes: tuple[str, ...] = ()
    policies: Mapping[str, DomainPolicy] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()
    migrating: frozenset[str] = frozenset()
    stated: Mapping[tuple[int, int], DomainPolicy] = field(default_factory=dict)
    stated_migrating: frozenset[tuple[int, int]] = frozenset()
    bound: Mapping[tuple[int, int], Numatune] = field(default_factory=dict)
