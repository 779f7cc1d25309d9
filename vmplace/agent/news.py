"""What do libvirt's hook and its events tell the agent?  One datagram each, of fields between zero bytes.

    VERSION OPERATION SUB EXTRA GUEST UUID

``OPERATION`` is the hook's (prepare, start, started, stopped, release, migrate, restore, reconnect, attach)
or ``event-metadata``, ``event-migrating``, ``event-state`` (libvirt_worker.py).  A datagram is a hint to look
at once: nothing is lost with one that does not arrive.
"""

from dataclasses import dataclass

from vmplace.outside import printable

VERSION = b"1"
FIELDS = 6
MOST_BYTES = 8192
SETTLES = frozenset({"event-state", "stopped", "release"})
"""After these, libvirt's own word on whether a guest migrates is what counts."""
MIGRATES = frozenset({"migrate", "event-migrating"})
ARRIVES = frozenset({"prepare", "start", "started"})
"""Steps of a guest that migrates to here: its QEMU starts, and its memory is yet to come."""


@dataclass(frozen=True)
class News:
    """One thing that happened to a guest, by name; ``uuid`` may be empty."""

    operation: str
    guest: str
    uuid: str = ""


def parse_news(datagram: bytes) -> News | None:
    """Return what a datagram tells, None for one that is not of this version."""
    fields = datagram.split(b"\0")
    if len(datagram) > MOST_BYTES or len(fields) < FIELDS or fields[0] != VERSION:
        return None
    # As long as the names of guests are (guest.py): a name that is cut differently is nobody's.
    _, operation, _, _, guest, uuid = (printable(field.decode(errors="replace")) for field in fields[:FIELDS])
    return News(operation, guest, uuid)
