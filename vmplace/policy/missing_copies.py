"""Which pages were to have copies, and have none?  What they would have gained is not counted.

1. KVM refuses pages: those that are written just then, that are no anonymous memory, for which there is no
   room.  A plan knows which of those that the last one wanted have none (``GuestView.missing_copies``).  An
   entry of which most pages are missing has no copies: they are planned anew, and have to pay anew.
2. What was refused is most likely refused again, and each plan stakes its price and takes of the budget.  So
   an entry is planned for once more at once, and then only after a while, twice as long each time, until it
   has copies.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from vmplace.model.copied_pages import AddressRuns
from vmplace.model.evidence import Entries
from vmplace.policy.host_view import Bools, Indexes
from vmplace.policy.plan import GuestView
from vmplace.policy.plan_state import Misses, PlannedEntries, State

FIRST_S, LONGEST_S = 2.0, 1024.0
"""As long as copies of a whole guest wait (actuation/replica_patience.py)."""
MOST_MISSES = 20
"""Beyond this many the wait is the longest anyhow."""


def without_missing(
    state: State, guests: Iterable[GuestView], seen: dict[str, Entries], now_s: float
) -> State:
    """Return the state with those entries as copied that have copies."""
    known = dict(state.known)
    for guest in guests:
        name, missing = guest.topology.name, guest.missing_copies
        if missing is not None and name in known and name in seen:
            known[name] = _checked(known[name], seen[name], missing, now_s)
    return replace(state, known=known)


def _checked(known: PlannedEntries, entries: Entries, missing: AddressRuns, now_s: float) -> PlannedEntries:
    if known.misses is None and not len(missing.hva):
        return known
    planned = np.flatnonzero(known.copied)
    unmade = planned[_are_missing(entries, planned, missing)]
    copied = known.copied.copy()
    copied[unmade] = False
    return replace(known, copied=copied, misses=_missed(known, unmade, now_s))


def _missed(known: PlannedEntries, unmade: Indexes, now_s: float) -> Misses:
    """Return how often copies were not made, with those that are ``unmade`` again."""
    count, until_s = np.zeros(len(known.copied), np.uint8), np.zeros(len(known.copied))
    if known.misses is not None:
        # Of what has copies, nothing is held against the next ones.
        count, until_s = (
            np.where(known.copied, 0, one) for one in (known.misses.count, known.misses.until_s)
        )
        count[unmade] = known.misses.count[unmade]
    again = count[unmade].astype(np.float64)
    waits_s = np.minimum(FIRST_S * 2.0 ** (again - 1), LONGEST_S)
    until_s[unmade] = np.where(again > 0, now_s + waits_s, 0.0)
    count[unmade] = np.minimum(again + 1, MOST_MISSES)
    return Misses(count.astype(np.uint8), until_s)


def misses_of(state: State, name: str) -> Misses | None:
    """Return what is remembered of a guest's copies that were not made."""
    return state.known[name].misses if name in state.known else None


def wait(known: PlannedEntries | None, now_s: float) -> Bools | np.bool_:
    """Return of which entries no copies are planned now."""
    if known is None or known.misses is None:
        return np.False_
    waits: Bools = known.misses.until_s > now_s
    return waits


def _are_missing(entries: Entries, some: Indexes, missing: AddressRuns) -> Bools:
    """Return of which of some entries, ascending, more than half of the pages are missing."""
    counts, sizes = np.zeros(len(some), np.int64), entries.sizes[some].astype(np.int64)
    for pages, (start, end) in zip(entries.pages, pairwise(entries.starts), strict=True):
        mine = slice(*np.searchsorted(some, (start, end)).tolist())
        inside = some[mine] - start
        counts[mine] = missing.count_in(pages.hva_of(inside), sizes[mine])
    return np.asarray(2 * counts > sizes, np.bool_)
