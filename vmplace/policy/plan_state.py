"""What does the joint plan remember, from the entries of one plan to those of the next?

An entry is a page or a whole block, and that may change from plan to plan.  What was known of each page is
then found by its address.  If the entries are the same as before, nothing has to be looked up.
"""

from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vmplace.model.evidence import Entries
from vmplace.model.touched_pages import HUGE_PAGES, TouchedPages
from vmplace.policy import guard
from vmplace.policy.full_controllers import Crowding
from vmplace.policy.gathering import Gathering
from vmplace.policy.host_view import ABSENT, Bools, Indexes
from vmplace.policy.move_gains import PastMove
from vmplace.policy.steadiness import NOBODY, Steadiness

T = TypeVar("T", bound=np.generic)
V = TypeVar("V")
KEPT_S = 60.0
"""So long guests are remembered that have no part in plans."""


@dataclass(frozen=True)
class PlannedEntries:
    """Where one guest's entries were at the last plan; ``copied``: which have copies, as far as is known."""

    pages: tuple[TouchedPages, ...]
    copied: Bools


@dataclass(frozen=True)
class State:
    """What is remembered between two plans; ``known_s``: when each guest had a part in one.

    ``think_ns``: what each guest was taken to work between two accesses.
    """

    known: dict[str, PlannedEntries] = field(default_factory=dict)
    memories: dict[str, guard.Memory] = field(default_factory=dict)
    steady: dict[str, Steadiness] = field(default_factory=dict)
    think_ns: dict[str, float] = field(default_factory=dict)
    planned_s: float = 0.0
    known_s: dict[str, float] = field(default_factory=dict)
    crowding: Crowding = field(default_factory=Crowding)
    gathering: Gathering = field(default_factory=Gathering)


def carried_over(state: State, seen: dict[str, Entries]) -> State:
    """Return the state with what is remembered of each guest by its entries of now."""
    known, memories, steady = {}, {}, {}
    for name, entries in seen.items():
        before = state.known.get(name)
        if before is None or name not in state.memories or not _is_of(entries.pages, before.pages):
            continue
        if _are_same(entries.pages, before.pages):
            known[name], steady[name] = PlannedEntries(entries.pages, before.copied), state.steady[name]
            memories[name] = _same_memory(state.memories[name])
            continue
        at = entries_before(entries.pages, before.pages)
        known[name] = PlannedEntries(entries.pages, _taken(before.copied, at, False))
        memories[name] = _memory_of(state.memories[name], at)
        old = state.steady[name]
        steady[name] = Steadiness(
            _taken(old.user, at, NOBODY), _taken(old.since_ns, at, 0.0), _taken(old.unwritten_ns, at, 0.0)
        )
    think_ns = {name: one for name, one in state.think_ns.items() if name in known or name not in seen}
    return replace(state, known=known, memories=memories, steady=steady, think_ns=think_ns, known_s={})


def remembered(after: State, before: State) -> State:
    """Return the state after a plan, with what was known of guests that had no part in it, for ``KEPT_S``.

    A guest of which a window shows nothing is still the same guest, and so are the others where one fails.
    """
    known_s = before.known_s | dict.fromkeys(after.known, after.planned_s)
    kept = {
        name for name, at_s in known_s.items() if after.planned_s - at_s < KEPT_S and name in before.known
    }
    return replace(
        after,
        known=_with(before.known, kept, after.known),
        memories=_with(before.memories, kept, after.memories),
        steady=_with(before.steady, kept, after.steady),
        think_ns=_with(before.think_ns, kept, after.think_ns),
        known_s={name: at_s for name, at_s in known_s.items() if name in kept | after.known.keys()},
    )


def _with(before: dict[str, V], kept: set[str], after: dict[str, V]) -> dict[str, V]:
    return {name: one for name, one in before.items() if name in kept} | after


def _is_of(now: tuple[TouchedPages, ...], before: tuple[TouchedPages, ...]) -> bool:
    """Tell whether it may be the same guest: another one of its name has its memory at other addresses."""
    known = {one.ram.hva for one in before}
    return not known or not now or any(one.ram.hva in known for one in now)


def _are_same(now: tuple[TouchedPages, ...], before: tuple[TouchedPages, ...]) -> bool:
    """Tell whether each entry is what it was: then nothing has to follow."""
    return len(now) == len(before) and all(
        (a.ram.hva, a.ram.npages) == (b.ram.hva, b.ram.npages)
        and all(_equal(*each) for each in ((a.blocks, b.blocks), (a.apart, b.apart), (a.whole, b.whole)))
        for a, b in zip(now, before, strict=True)
    )


def _equal(now: Indexes, before: Indexes) -> bool:
    return len(now) == len(before) and not (now != before).any()


def _same_memory(memory: guard.Memory) -> guard.Memory:
    """Return the memory of entries that are the same; moves that joined a trial get into its order."""
    if any((trial.pages[1:] <= trial.pages[:-1]).any() for trial in memory.trials):
        return _memory_of(memory, np.arange(len(memory.origin)))
    return memory if memory.promise is None else replace(memory, promise=None)


def _memory_of(memory: guard.Memory, at: Indexes) -> guard.Memory:
    trials = tuple(_trial_of(trial, len(memory.origin), at) for trial in memory.trials)
    return replace(memory, origin=_taken(memory.origin, at, ABSENT), trials=trials, promise=None)


def _trial_of(trial: PastMove, count: int, at: Indexes) -> PastMove:
    places = np.full((2, count), ABSENT, np.int8)
    member = np.zeros(count, np.bool_)
    places[0, trial.pages], places[1, trial.pages], member[trial.pages] = trial.before, trial.after, True
    pages: Indexes = np.flatnonzero(_taken(member, at, False))
    return replace(trial, pages=pages, before=places[0][at[pages]], after=places[1][at[pages]])


def _taken(values: npt.NDArray[T], at: Indexes, default: object) -> npt.NDArray[T]:
    """Return ``values[at]``, and ``default`` where ``at`` is below zero."""
    taken = np.full(len(at), default, values.dtype)
    there = at >= 0
    taken[there] = values[at[there]]
    return taken


def entries_before(now: tuple[TouchedPages, ...], before: tuple[TouchedPages, ...]) -> Indexes:
    """Return which entry of ``before`` each entry of ``now`` was (part of), -1 for those that had none."""
    starts = np.cumsum([0, *(one.entries for one in before)]).tolist()
    old = {one.ram.hva: (one, start) for one, start in zip(before, starts[:-1], strict=True)}
    found = []
    for one in now:
        known = old.get(one.ram.hva)
        if known is None or known[0].ram.npages != one.ram.npages:
            found.append(np.full(one.entries, -1, np.intp))
        else:
            at = _within(one, known[0])
            found.append(np.where(at >= 0, at + known[1], -1))
    return np.concatenate([np.zeros(0, np.intp), *found])


def _within(now: TouchedPages, before: TouchedPages) -> Indexes:
    blocks = 1 + int(max(now.blocks.max(initial=0), before.blocks.max(initial=0)))
    first, step = np.full(blocks, -1, np.intp), np.zeros(blocks, np.intp)
    apart, whole = before.blocks[before.apart], before.blocks[before.whole]
    first[apart], step[apart] = np.arange(len(apart)) * HUGE_PAGES, 1
    first[whole] = before.edge + np.arange(len(whole))
    block = np.concatenate([np.repeat(now.blocks[now.apart], HUGE_PAGES), now.blocks[now.whole]])
    inside = np.zeros(len(block), np.intp)
    inside[: now.edge] = np.tile(np.arange(HUGE_PAGES), len(now.apart))
    return np.where(first[block] >= 0, first[block] + step[block] * inside, -1)
