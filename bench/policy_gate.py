"""Does what ships do harm in any row of the table?  The gate of the policy bench."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
SHIPS = "agent:auto"
HARM = 0.01
"""A guest may get no slower than this, beside doing nothing.  Never moved after a run that it judges."""


def harmed(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of what ships in which a guest got slower than HARM, the worst first."""
    mine = [one for one in rows if one["policy"] == SHIPS and one["worst_guest_slowdown"] > HARM]
    yield from sorted(mine, key=lambda one: -one["worst_guest_slowdown"])


def lines(rows: Sequence[Row]) -> list[str]:
    """Return what the gate says, a line each; none if it holds."""
    return [
        f"{SHIPS} does harm: {one['host']} {one['mix']}, {one['source']}: a guest is "
        f"{one['worst_guest_slowdown']:.1%} slower than with its memory untouched, {HARM:.0%} is the bound"
        for one in harmed(rows)
    ]
