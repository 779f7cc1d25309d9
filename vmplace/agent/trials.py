"""Is each guest better off since its memory moved?  Costs by window in, verdicts out (policy/trial.py)."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from vmplace.actuation.result import ActuationResult
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.policy.trial import SAMPLE_S, Trial, Verdict
from vmplace.sampling.guest_cost import CountsMemory, GuestCost, MemoryRate
from vmplace.topology.guest import PAGE_BYTES, GuestTopology

LOG = logging.getLogger(__name__)
T = TypeVar("T")
STIRRED = 0.05
"""A cost that changes by this share from one window to the next shows another phase of the program."""
LEAST_SHARE = 0.001
"""The share of a guest's pages that must move to begin a trial: fewer have no effect that can be measured."""


class Trials:
    """Measures guests and tells what becomes of what was moved for them; without counters it keeps all.

    ``judges`` tells of which guests: the others are measured alone, as their policy has a guard of its own.
    ``sample_s``: how long a sample of a cost is, however short windows become.
    """

    def __init__(
        self,
        counters: GuestCost | None,
        judges: Callable[[TrackedGuest], bool] = lambda _: True,
        sample_s: float = SAMPLE_S,
    ) -> None:
        self._counters = counters
        self._window_s = self._sample_s = sample_s
        self._judges = judges
        self._costs: dict[str, float | None] = {}
        self._unmeasured: dict[str, str] = {}
        self._was_judged: dict[str, bool] = {}
        self._watched: dict[str, Trial] = {}
        self._little: dict[str, int] = {}

    def begin(self, guests: Iterable[TrackedGuest], window_s: float) -> None:
        """Begin a window of so many seconds: what was counted before it is nobody's."""
        self._window_s = window_s
        self._costs = {guest.name: self._cost(guest) for guest in guests}

    def end(self, guests: Iterable[TrackedGuest], now_s: float) -> None:
        """End it, at ``now_s`` of the agent's clock."""
        begun = self._costs
        guests = tuple(guests)
        self._costs = {guest.name: self._cost(guest) for guest in guests if guest.name in begun}
        for guest in guests:
            rate, cost = self._rate(guest), self._costs.get(guest.name)
            guest.take_rate(rate, now_s)
            guest.by_cpus.add(rate.by_cpus if rate and rate.dram_per_us is not None else None, self._window_s)
            guest.costs.add(cost, rate, self._window_s, self._sample_s, now_s)

    def settle(
        self, guests: Iterable[TrackedGuest], result: ActuationResult, now_s: float
    ) -> Mapping[str, Verdict]:
        """Take in what moved after the window; return the verdicts by guest."""
        verdicts: dict[str, Verdict] = {}
        if self._counters is None:
            return verdicts
        moved = _moved_pages(result)
        for guest in guests:
            is_judged = self._judges(guest)
            if self._was_judged.get(guest.name, is_judged) != is_judged:
                self._begin_anew(guest)
            self._was_judged[guest.name] = is_judged
            before = guest.trial if is_judged else self._watched.get(guest.name, Trial())
            cost = self._costs.get(guest.name)
            has_moved = self._has_moved(guest, moved.get(guest.name, 0), before)
            trial, verdict = before.after_window(
                cost, moved=has_moved, now_s=now_s, window_s=self._window_s, sample_s=self._sample_s
            )
            guest.cost_ratio = trial.ratio if verdict is not None else guest.cost_ratio
            if not is_judged:
                self._watched[guest.name] = trial
                guest.trial = guest.trial.superseded() if has_moved else guest.trial
                continue
            guest.trial = trial
            if verdict is not None:
                verdicts[guest.name] = verdict
                LOG.info('guest=%s trial=%s reason="%s"', guest.name, verdict.value, guest.trial.summary)
        return verdicts

    def _has_moved(self, guest: TrackedGuest, pages: int, trial: Trial) -> bool:
        """Tell whether enough moved since the last trial, in however many windows."""
        least = LEAST_SHARE * sum(ram.size_bytes for ram in guest.topology.ram) / PAGE_BYTES
        so_far = pages if trial.trying else self._little.get(guest.name, 0) + pages
        has_moved = so_far > least
        self._little[guest.name] = 0 if trial.trying or has_moved else so_far
        return has_moved

    def may_move(self, guest: TrackedGuest, now_s: float) -> bool:
        """Return whether the guest's memory may move: it is measured, and no trial went wrong lately.

        What is yet to be undone must not move on: nobody would know any more what made the guest slower.
        """
        if guest.trial.is_undo_due:
            return False
        if self._counters is None or not self._judges(guest):
            return True
        cost = self._costs.get(guest.name)
        if guest.trial.is_left_alone(now_s):
            return False
        return guest.trial.is_measured(cost, window_s=self._window_s, sample_s=self._sample_s)

    def stirred(self, guests: Iterable[TrackedGuest]) -> bool:
        """Return whether a guest began to do something else since its window: its cost changed by STIRRED."""
        if self._counters is None:
            return False
        changed = False
        for guest in guests:
            before, now = self._costs.get(guest.name), self._cost(guest)
            if before is not None and now is not None and abs(now - before) > STIRRED * before:
                changed = True
        return changed

    def _begin_anew(self, guest: TrackedGuest) -> None:
        """Drop what was measured before another way of planning: what moved since is not known here."""
        guest.trial = guest.trial.anew()
        self._watched.pop(guest.name, None)
        self._little.pop(guest.name, None)

    def forget(self, guest: GuestTopology) -> None:
        """Let go of a guest that ended."""
        self._unmeasured.pop(guest.name, None)
        self._watched.pop(guest.name, None)
        self._was_judged.pop(guest.name, None)
        self._little.pop(guest.name, None)
        if self._counters is not None:
            self._counters.forget(guest)

    def close(self) -> None:
        """Let go of the counters."""
        if self._counters is not None:
            self._counters.close()

    def _rate(self, guest: TrackedGuest) -> MemoryRate | None:
        counters = self._counters
        if not isinstance(counters, CountsMemory):
            return None
        return self._counted(guest, counters.rate)

    def _cost(self, guest: TrackedGuest) -> float | None:
        return None if self._counters is None else self._counted(guest, self._counters.cost)

    def _counted(self, guest: TrackedGuest, count: Callable[[GuestTopology], T | None]) -> T | None:
        """Return what counters tell of a guest, None where they fail: that stops nobody."""
        try:
            return count(guest.topology)
        except Exception as err:
            if self._unmeasured.get(guest.name) != str(err):
                LOG.warning('guest=%s reason="no counters show whether moving helped: %s"', guest.name, err)
            self._unmeasured[guest.name] = str(err)
            return None


def _moved_pages(result: ActuationResult) -> dict[str, int]:
    moved = {outcome.guest: outcome.moved for outcome in result.outcomes}
    for replicas in result.replicas:
        moved[replicas.guest] = moved.get(replicas.guest, 0) + replicas.replicated
    return moved
