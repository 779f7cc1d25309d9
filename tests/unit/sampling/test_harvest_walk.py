"""Do KVM's harvests miss accesses on CPUs that cache page table entries?  All interleavings of a small model.

No emulator has paging-structure caches, so the walk is modelled here, as Intel's SDM (volume 3, "Caching
Translation Information") and AMD's APM (volume 2) describe it:

* A walk sets the accessed bit of each entry that it takes from memory, and may cache it then.
* A walk may begin with any cached entry; it leaves that entry, and those above it, as they are in memory.
* A flush empties the caches, and a walk that goes on then begins anew (the vCPU leaves the guest for it).

There are three tables: one of two entries, and two of a page.  The harvest is that of
kvm-patches/ (tdp_mmu_harvest_nonleaf): it takes the tables from the top, clears what it reads, and flushes
at its end.  What is touched between two flushes has to be in the report of the harvest that the second one
ends, or of the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

TOP, PATHS = 0, ((1, 3), (2, 4))
"""Entries by number: 0 is above 1 and 2, 1 is above page 3, 2 is above page 4."""
BELOW = {0: (1, 2), 1: (3,), 2: (4,)}
PAGES = (3, 4)
NONE: frozenset[int] = frozenset()
HARVESTS, ACCESSES = 3, 2


@dataclass(frozen=True)
class State:
    """Sets of entries, and where the harvest and the CPU's walk are."""

    accessed: frozenset[int] = NONE
    marked: frozenset[int] = NONE
    cached: frozenset[int] = NONE
    todo: tuple[int, ...] | None = None
    """What the harvest is still to look at; None between harvests."""
    walk: tuple[int, ...] = ()
    """What the CPU's walk is still to read; its last entry is the page."""
    touched: frozenset[int] = NONE
    reported: frozenset[int] = NONE
    owed: frozenset[int] = NONE
    """Touched before the last flush, and not reported yet."""
    harvests: int = 0
    accesses: int = 0


class MissedError(Exception):
    """A page was touched, and two harvests did not say so."""


def walks(state: State) -> Iterator[State]:
    """Begin an access to any page: with the top entry, or a cached one on the way."""
    if state.walk or state.accesses == ACCESSES:
        return
    for middle, page in PATHS:
        path = (TOP, middle, page)
        for first in range(3):
            if first == 0 or path[first - 1] in state.cached:
                yield replace(state, walk=path[first:], accesses=state.accesses + 1)
        if page in state.cached:
            yield replace(state, touched=state.touched | {page}, accesses=state.accesses + 1)


def steps_of_walk(state: State) -> Iterator[State]:
    """Read one more entry: set its bit, and cache it or not."""
    if not state.walk:
        return
    entry, *rest = state.walk
    after = replace(state, accessed=state.accessed | {entry}, walk=tuple(rest))
    if not rest:
        after = replace(after, touched=after.touched | {entry})
    yield after
    yield replace(after, cached=after.cached | {entry})


def look(state: State, entry: int, *, marks: bool) -> State:
    """Have the harvest look at an entry: clear its bits, report a page, descend to a table."""
    assert state.todo is not None
    is_set = entry in state.accessed
    after = replace(state, accessed=state.accessed - {entry}, todo=state.todo[1:])
    if entry in PAGES:
        return replace(after, reported=after.reported | {entry}) if is_set else after
    descends = is_set or entry in state.marked
    if marks:
        after = replace(after, marked=after.marked | {entry} if is_set else after.marked - {entry})
    return replace(after, todo=BELOW[entry] + state.todo[1:]) if descends else after


def ended(state: State, *, flushes: bool) -> State:
    """Flush, and see whether anything is owed for the second time."""
    if missed := state.owed - state.reported:
        raise MissedError(f"pages {set(missed)}")
    after = replace(state, todo=None, reported=NONE, touched=NONE, owed=state.touched - state.reported)
    if not flushes:
        return after
    walk = (TOP, *next(path for path in PATHS if path[1] == state.walk[-1])) if state.walk else ()
    return replace(after, cached=NONE, walk=walk)


def steps_of_harvest(state: State, *, marks: bool, flushes: bool) -> Iterator[State]:
    """Begin, look at one more entry, or end."""
    if state.todo is None:
        if state.harvests < HARVESTS:
            yield replace(state, todo=(TOP,), harvests=state.harvests + 1)
    elif state.todo:
        yield look(state, state.todo[0], marks=marks)
    else:
        yield ended(state, flushes=flushes)


def explore(*, marks: bool, flushes: bool = True) -> int:
    """Visit all states and return how many there are; raises MissedError."""
    seen, left = {State()}, [State()]
    while left:
        state = left.pop()
        for after in (
            *walks(state),
            *steps_of_walk(state),
            *steps_of_harvest(state, marks=marks, flushes=flushes),
        ):
            if after not in seen:
                seen.add(after)
                left.append(after)
    return len(seen)


def test_clearing_from_the_top_alone_misses_accesses() -> None:
    with pytest.raises(MissedError):
        explore(marks=False)


@pytest.mark.slow
def test_marks_miss_nothing() -> None:
    assert explore(marks=True) > 10_000


def test_without_flushes_accesses_are_missed() -> None:
    with pytest.raises(MissedError):
        explore(marks=True, flushes=False)
