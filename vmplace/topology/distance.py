"""How far are the nodes from each other: the SLIT, as sysfs shows it."""

from pathlib import Path

from vmplace.errors import VmplaceError
from vmplace.outside import MOST_ID, read_text, whole

MOST_DISTANCE = 255
"""A byte of the SLIT."""


def parse_distances(text: str) -> list[int]:
    """Parse the line of one nodeN/distance file."""
    return [whole(field, least=1, most=MOST_DISTANCE, what="distance") for field in text.split()]


def read_nids(sysfs: Path) -> list[int]:
    """Return the nids of all online nodes, ascending; they may be sparse."""
    root = sysfs / "devices/system/node"
    return sorted(whole(path.name.removeprefix("node"), most=MOST_ID) for path in root.glob("node[0-9]*"))


def read_distances(sysfs: Path = Path("/sys")) -> dict[tuple[int, int], int]:
    """Return the node distances, indexed by (from nid, to nid).

    Raises VmplaceError if a line does not have one field per online node: a node went on- or offline
    between two reads, and a second attempt is right.
    """
    # The line of a node lists online nodes only, so nids cannot be counted from 0.
    nids = read_nids(sysfs)
    distances: dict[tuple[int, int], int] = {}
    for nid in nids:
        line = parse_distances(read_text(sysfs / f"devices/system/node/node{nid}/distance"))
        if len(line) != len(nids):
            raise VmplaceError(
                f"node {nid} lists {len(line)} distances, but {len(nids)} nodes are online",
                hint="nodes are being hotplugged; try again",
            )
        distances |= {(nid, to): distance for to, distance in zip(nids, line, strict=True)}
    return distances
