"""Does what ships do harm in any row of the table?  The gate of the policy bench."""

import math
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
    yield from sorted(mine, key=lambda one: _as_bad_as(one["worst_guest_slowdown"]), reverse=True)


def _as_bad_as(slower: float) -> float:
    """Return a slowdown to sort by: what is no number is the worst."""
    return math.inf if math.isnan(slower) else slower


def protected_harmed(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of what ships in which a protected guest got slower than its bound."""
    for one in rows:
        slower = one.get("worst_protected_slowdown")
        if one["policy"] == SHIPS and slower is not None and not slower <= PROTECTED_BOUND:
            yield one


def judged(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of what ships; programs that were made up do not stand for those that are recorded."""
    mine = [one for one in rows if one["policy"] == SHIPS]
    return mine if any(not one["mix"].startswith("hostile-") for one in mine) else []


def lines(rows: Sequence[Row], unjudged: Sequence[str] = ()) -> list[str]:
    """Return what the gate says, a line each; none if it holds.  ``unjudged``: why not all was judged.

    It judges nothing without a row of a recorded program.
    """
    why = [f"not all was judged: {words}" for words in unjudged]
    if not judged(rows):
        return [*why, f"{SHIPS} was run on no recorded trace, so nothing shows that it does no harm"]
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
