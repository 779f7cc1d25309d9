"""What does a guest gain by pages that were moved?  The model compares with them where they lay before.

1. Of what was moved lately, it is known from where, and at which price (``PastMove``): one trial.
2. A guest's traffic without a trial, or without all moves, follows from what was seen of these pages
   (``GuestTraffic``).
3. The share by which a guest would be slower with that traffic is what it gains (``slowdowns``), alone and if
   all guests' moves were undone together (``slowdown_of_all``).

Limits: the heat of pages is that of late; what they had before the move may have been another.
"""

from dataclasses import dataclass, replace

import numpy as np

from vmplace.model.memory_system import beside, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import (
    ABSENT,
    GuestEvidence,
    HostView,
    Indexes,
    NodeIndexes,
    demand,
    traffic,
)

BATCH_NS = 6e6
"""What is moved within this time is one trial."""


@dataclass(frozen=True)
class PastMove:
    """Pages of one guest that were moved at one time: from where, at which price, and what came of it."""

    pages: Indexes
    before: NodeIndexes
    after: NodeIndexes
    cost_ns: float
    born_ns: float
    copies: bool = False
    gained_ns: float = 0.0


def with_trial(trials: tuple[PastMove, ...], new: PastMove) -> tuple[PastMove, ...]:
    """Return the trials with one more, which joins the last of its kind if that is young."""
    last = next((trial for trial in reversed(trials) if trial.copies == new.copies), None)
    if last is None or new.born_ns - last.born_ns >= BATCH_NS:
        return (*trials, new)
    joined = replace(
        last,
        pages=np.concatenate([last.pages, new.pages]),
        before=np.concatenate([last.before, new.before]),
        after=np.concatenate([last.after, new.after]),
        cost_ns=last.cost_ns + new.cost_ns,
    )
    return tuple(joined if trial is last else trial for trial in trials)


def without_dropped_copies(trial: PastMove, view: HostView, guest: GuestEvidence) -> PastMove:
    """Return the trial without copies that are gone: they were written to, and that has a price, too."""
    if not trial.copies:
        return trial
    still = guest.node[trial.pages] == trial.after
    gone = trial.pages[~still & (guest.node[trial.pages] != ABSENT)]
    lost_ns = float(guest.unmapped(gone).sum()) * view.collapse_ns / max(guest.parallelism, 1.0)
    return replace(
        trial,
        pages=trial.pages[still],
        before=trial.before[still],
        after=trial.after[still],
        cost_ns=trial.cost_ns + lost_ns,
    )


@dataclass(frozen=True)
class GuestTraffic:
    """A guest's traffic now, and in it its pages'.

    ``scale``: accesses per ns that stand for one of the source's; 0 where nothing was seen.
    """

    guest: GuestEvidence
    traffic: Matrix
    scale: float

    @classmethod
    def of(cls, guest: GuestEvidence) -> "GuestTraffic":
        """Return the guest's traffic by its counters, or by what was seen of it where there are none."""
        if guest.recent is None:
            return cls(guest, np.zeros((guest.heat.shape[1],) * 2), 0.0)
        seen = traffic(guest.recent, guest.node)
        now = seen if guest.counters is None else guest.counters.accesses
        # In the units of what is counted: the source's heat is scaled to the counters already.
        return cls(guest, now, float(now.sum()) / max(float(seen.sum()), 1e-300))

    def without(self, trial: PastMove) -> Matrix:
        """Return the traffic if the trial's pages lay where they lay before."""
        still = self.guest.node[trial.pages] == trial.after
        return self._with(trial.pages[still], trial.before[still])

    def without_moves(self, origin: NodeIndexes) -> Matrix:
        """Return the traffic if every page lay at its origin."""
        away = np.flatnonzero(origin != self.guest.node)
        return self._with(away, origin[away])

    def _with(self, pages: Indexes, before: NodeIndexes) -> Matrix:
        if self.guest.recent is None or not len(pages):
            return self.traffic
        heat = self.guest.recent[pages]
        here, there = traffic(heat, self.guest.node[pages]), traffic(heat, before)
        then: Matrix = np.maximum(self.traffic + (there - here) * self.scale, 0.0)
        return then


def slowdowns(view: HostView, traffics: list[GuestTraffic], asked: list[list[Matrix]]) -> list[list[float]]:
    """Return by which share each guest would be slower with each of its ``asked`` traffics, not its own.

    The other guests' traffic stays as the counters have it.
    """
    rows = [(own, one) for own, some in zip(traffics, asked, strict=True) for one in (own.traffic, *some)]
    if not rows:
        return []
    others = _background(view, [own.guest for own, _ in rows])
    needs = demand(tuple(own.guest for own, _ in rows), [one for _, one in rows])
    rates = iter(beside(view.system, needs, others).tolist())
    answers = []
    for some in asked:
        now = next(rates)
        answers.append([now / next(rates) - 1 for _ in some])
    return answers


def slowdown_of_all(view: HostView, traffics: list[GuestTraffic], asked: list[list[Matrix]]) -> list[float]:
    """Return by which share each guest would be slower if all had the first of their ``asked`` traffics.

    -1 where nobody knows, as not all are counted: one that uses its caches alone, and is taken to ask for
    memory all the time, must not turn a loss of others into a gain.
    """
    pairs = list(zip(traffics, asked, strict=True))
    if not all(guest.is_counted for guest in view.guests):
        return [-1.0] * len(pairs)
    if all(some[0] is one.traffic for one, some in pairs):
        return [0.0] * len(pairs)
    names = {one.guest.name for one in traffics}
    rest = [GuestTraffic.of(guest) for guest in view.guests if guest.name not in names]
    guests = tuple(one.guest for one in (*traffics, *rest))
    stay = [one.traffic for one in rest]
    now = solved(view.system, demand(guests, [*(one.traffic for one in traffics), *stay])).rates
    then = solved(view.system, demand(guests, [*(some[0] for some in asked), *stay]), now).rates
    shares: list[float] = (now / then - 1)[: len(pairs)].tolist()
    return shares


def _background(view: HostView, guests: list[GuestEvidence]) -> Matrix:
    """Return the rate [G, R] that all but each of ``guests`` ask of each resource, by the counters."""
    system, pairs = view.system, len(view.system.nids) ** 2
    reported = {one.name: one.counters.accesses.ravel() for one in view.guests if one.counters is not None}
    total = np.sum([*reported.values()], axis=0) if reported else np.zeros(pairs)
    nothing = np.zeros(pairs)
    rest = np.stack([total - reported.get(guest.name, nothing) for guest in guests])
    rates: Matrix = np.maximum(rest, 0.0) @ system.visits.reshape(pairs, -1)
    return rates
