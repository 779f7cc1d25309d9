"""Does what ships do harm in any row of the table?  The gate of the policy bench."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vmplace.simulate.guest_option import PROTECTED_BOUND

Row = Mapping[str, Any]
SHIPS = "agent:auto"
HARM = 0.01
"""A guest may get no slower than this, beside doing nothing.  Never moved after a run that it judges."""


def harmed(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of what ships in which a guest got slower than HARM, the worst first."""
    mine = [one for one in rows if one["policy"] == SHIPS and not one["worst_guest_slowdown"] <= HARM]
    yield from sorted(mine, key=lambda one: -one["worst_guest_slowdown"])


def protected_harmed(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of what ships in which a protected guest got slower than its bound."""
    for one in rows:
        slower = one.get("worst_protected_slowdown")
        if one["policy"] == SHIPS and slower is not None and not slower <= PROTECTED_BOUND:
            yield one


def lines(rows: Sequence[Row], missing: Sequence[str] = ()) -> list[str]:
    """Return what the gate says, a line each; none if it holds.  ``missing``: traces that were not there.

    It judges nothing without a row, and not all that it should without a trace.
    """
    why = (
        [f"there is no trace of {', '.join(missing)}, so not all was judged: see --traces"] if missing else []
    )
    if not any(one["policy"] == SHIPS for one in rows):
        return [*why, f"{SHIPS} was not run, so nothing shows that it does no harm"]
    said = [("a guest", one, one["worst_guest_slowdown"], HARM) for one in harmed(rows)]
    said += [
        ("a protected guest", one, one["worst_protected_slowdown"], PROTECTED_BOUND)
        for one in protected_harmed(rows)
    ]
    return why + [
        f"{SHIPS} does harm: {one['host']} {one['mix']}, {one['source']}: {who} is {slower:.1%} slower than "
        f"with its memory untouched, {bound:.1%} is the bound"
        for who, one, slower, bound in said
    ]
