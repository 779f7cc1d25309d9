"""Which name has each guest?  No two guests have the same, and none takes another one's."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from vmplace.topology.guest import GuestTopology, Identity


def with_unique_names(
    guests: Iterable[GuestTopology], known: Mapping[Identity, str]
) -> tuple[GuestTopology, ...]:
    """Return the guests, each with a name of its own.

    Guests of libvirt have its name.  Another guest keeps its name in ``known``, even if it claims a different
    one later.  If several new guests claim one name, the oldest gets it; the others get their pid added.
    """
    guests = tuple(guests)
    taken = {guest.name for guest in guests if guest.origin == "libvirt"}
    names: dict[Identity, str] = {}
    others = [guest for guest in guests if guest.origin != "libvirt"]
    for guest in sorted(others, key=lambda one: (one.identity not in known, one.start_time, one.pid)):
        wanted = known.get(guest.identity, guest.name)
        name, count = wanted, 0
        while name in taken:
            name = f"{wanted[:40]}-{guest.pid}" + (f"-{count}" if count else "")
            count += 1
        taken.add(name)
        names[guest.identity] = name
    return tuple(replace(guest, name=names.get(guest.identity, guest.name)) for guest in guests)
