"""Is a plan of whole pages better than what is there, or only in the fractions that it was made of?

1. The descent mixes placements in any proportion; pages follow one or the other (``descent.rounded``).  Of
   guests with few pages, or beside a controller that is nearly full, that may cost more than the gain.
2. So the plan as it is rounded is solved for, with what it pays.  If it gains nothing, it is tried for the
   half of the guests that gain most, and so on.  What gains nothing stays: else each window would undo what
   the one before did.
3. Then guests are tried one by one: those that the halves left out, and those of few pages with all of them
   where they are nearest, as which part of a mixture they follow is chance.
4. A part of a plan is nothing that the descent weighed: it may not cost a protected guest more than its
   bound, even where the whole plan would.
5. No plan, whole or not, may leave a protected guest slower by more than its bound than if all guests' pages
   lay where they were at first: many plans may each cost it a little.  What it lost by its own moves is no
   other guest's doing: it counts with its own pages as they are if that is slower.

Example: two pages of a guest are alike, and one is on each node.  To swap them gains nothing.

>>> from vmplace.model.described_memory import described_memory
>>> from vmplace.policy.host_view import GuestEvidence
>>> distances, mib_per_s = np.array([[10.0, 20.0], [20.0, 10.0]]), np.array([[2e3, 1e3], [1e3, 2e3]])
>>> system = described_memory((0, 1), distances, mib_per_s, np.ones(2))
>>> guest = GuestEvidence(
...     name="db", heat=np.array([[9.0, 9.0], [8.0, 8.0]]), written=np.ones(2, bool),
...     node=np.array([0, 1], np.int8), worker=np.ones(2, bool), windows=np.ones(2, np.int64),
...     read_ratio=0.5, parallelism=2.0, think_ns=50.0, mlp=2.5,
... )
>>> task = PageTask(guest, replicable=np.zeros(2, bool), move_price=np.full(2, 10.0))
>>> worthwhile(system, [task], [np.array([1, 0], np.int8)])[0].tolist()
[0, 1]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vmplace.model.memory_system import MemorySystem, solved
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import NodeIndexes, demand
from vmplace.policy.page_task import PageTask, cheapest

FEW_PAGES = 16
"""That were touched: more of them are in proportion to a mixture, nearly."""
TRIES = 8
"""So many guests of either kind are tried one by one, those first that promise most."""
WORTH = 0.001
"""By so much of its own time a guest that is tried alone has to help all: less is no more than rounding."""
NEARER = 0.01
"""By so much of its latency a place has to be nearer."""


def worthwhile(
    system: MemorySystem,
    tasks: Sequence[PageTask],
    plans: Sequence[NodeIndexes],
    origins: Sequence[NodeIndexes] | None = None,
) -> list[NodeIndexes]:
    """Return where each guest's pages are to be, of which a sum of rises below 0 can be expected.

    A guest's rise is by how much its time grows, moves and copies included, as a share of its time now; it
    counts by the guest's weight in the descent.  ``origins``: where each guest's pages were at first.
    """
    trials = _Trials(system, tasks, origins)
    planned = [trials.placed(number, plan) for number, plan in enumerate(plans)]
    return [one.places for one in _singly(trials, _halved(trials, planned), planned)]


@dataclass(frozen=True)
class _Placed:
    """Where a guest's pages are, its traffic[N, N] then, and what the way there costs it (ns)."""

    places: NodeIndexes
    traffic: Matrix
    price: float


class _Trials:
    """What all guests' times would be: ``here`` they are now, in ns an access of a guest's vCPUs together."""

    def __init__(
        self, system: MemorySystem, tasks: Sequence[PageTask], origins: Sequence[NodeIndexes] | None = None
    ) -> None:
        self.system, self.tasks, self._origins = system, tasks, origins
        self.here = [_Placed(one.guest.node, one.traffic(one.guest.node), 0.0) for one in tasks]
        self._vcpus = np.array([one.guest.mlp * one.guest.parallelism for one in tasks])
        self.weights: Matrix = np.array([one.importance for one in tasks]) * self._vcpus
        self._bounds = np.array(
            [np.inf if one.guest.slowdown_bound is None else one.guest.slowdown_bound for one in tasks]
        )
        self._now = self._times(self.here, None)

    def placed(self, number: int, places: NodeIndexes) -> _Placed:
        """Return a guest with its pages at ``places``: the one of ``here`` if nothing changes."""
        here, task = self.here[number], self.tasks[number]
        if np.array_equal(places, here.places):
            return here
        return _Placed(places, task.traffic(places), task.price_of_way(self.system, places))

    def rises(self, placed: Sequence[_Placed]) -> Matrix:
        """Return each guest's rise, times its weight."""
        accesses = np.array([max(float(one.traffic.sum()), 1e-300) for one in placed])
        prices = np.array([one.price for one in placed])
        then = self._times(placed, 1 / self._now) + prices / (self._vcpus * accesses)
        rises: Matrix = self.weights * (then - self._now) / self._now
        return rises

    def spares(self, rises: Matrix, before: Matrix | float = -np.inf) -> bool:
        """Tell whether no protected guest rises beyond its bound, or ``before`` where that is more."""
        return bool((rises <= np.maximum(self._bounds * self.weights, before)).all())

    def keeps_bounds(self, placed: Sequence[_Placed]) -> bool:
        """Tell whether no protected guest is slower than at first by more than its bound, nor than now."""
        if self._origins is None or not np.isfinite(self._bounds).any():
            return True
        most = np.maximum((1 + self._bounds) * self._at_first, self._now)
        return bool((self._times(placed, 1 / self._now) <= most * (1 + 1e-9)).all())

    @cached_property
    def _at_first(self) -> Matrix:
        """Return each guest's time with all pages where they were at first, or those of others alone.

        The others are those that are not protected: guest by guest that would take as long as the plan.
        """
        placed = [
            _Placed(origin, task.traffic(origin), 0.0)
            for task, origin in zip(self.tasks, self._origins or (), strict=True)
        ]
        others = [
            here if np.isfinite(bound) else first
            for here, first, bound in zip(self.here, placed, self._bounds.tolist(), strict=True)
        ]
        times, alone = (self._times(one, 1 / self._now) for one in (placed, others))
        most: Matrix = np.maximum(times, alone)
        return most

    def _times(self, placed: Sequence[_Placed], guess: Matrix | None) -> Matrix:
        """``guess``: the guests' rates, nearly."""
        needs = demand(tuple(task.guest for task in self.tasks), [one.traffic for one in placed])
        times: Matrix = 1 / solved(self.system, needs, guess).rates
        return times


def _halved(trials: _Trials, planned: Sequence[_Placed]) -> list[_Placed]:
    """Return the plans of all guests, or of those that gain most by them."""
    tried = list(planned)
    changed = whole = _left_out(trials.here, planned)
    while changed:
        rises = trials.rises(tried)
        is_spared = (changed is whole or trials.spares(rises)) and trials.keeps_bounds(tried)
        if float(rises.sum()) < 0 and is_spared:
            return tried
        # With fewer there is less to be rounded: of hundreds, one may gain what the others lose.
        changed = sorted(changed, key=lambda n: float(rises[n]))[: len(changed) // 2]
        tried = [planned[n] if n in changed else trials.here[n] for n in range(len(planned))]
    return list(trials.here)


def _singly(trials: _Trials, kept: list[_Placed], planned: Sequence[_Placed]) -> list[_Placed]:
    """Return what was kept, with each guest besides that helps all by itself."""
    candidates = [*_refused(trials, kept, planned), *_far(trials, kept)]
    if not candidates:
        return kept
    before = trials.rises(kept)
    for number, one in candidates:
        tried = [*kept[:number], one, *kept[number + 1 :]]
        rises = trials.rises(tried)
        gain = float(before.sum() - rises.sum())
        is_spared = trials.spares(rises, before) and trials.keeps_bounds(tried)
        if gain > WORTH * trials.weights[number] and is_spared:
            kept, before = tried, rises
    return kept


def _refused(trials: _Trials, kept: list[_Placed], planned: Sequence[_Placed]) -> list[tuple[int, _Placed]]:
    """Return guests whose plans were left out, those first that gain most by the whole plan."""
    left = _left_out(kept, planned)
    rises = trials.rises(planned) if left else np.empty(0)
    return [(n, planned[n]) for n in sorted(left, key=lambda n: float(rises[n]))[:TRIES]]


def _far(trials: _Trials, kept: list[_Placed]) -> list[tuple[int, _Placed]]:
    """Return guests of few pages with these where they are nearest, the farthest first."""
    latency, found = trials.system.latency, []
    for number, (task, one) in enumerate(zip(trials.tasks, kept, strict=True)):
        if 0 < len(one.places) <= FEW_PAGES:
            near = trials.placed(number, cheapest(trials.system, task, latency))
            share = float((near.traffic * latency).sum()) / float((one.traffic * latency).sum())
            if share < 1 - NEARER:
                found.append((share, number, near))
    return [(number, near) for _, number, near in sorted(found, key=lambda one: one[:2])[:TRIES]]


def _left_out(kept: Sequence[_Placed], planned: Sequence[_Placed]) -> list[int]:
    return [number for number, one in enumerate(planned) if one is not kept[number]]
