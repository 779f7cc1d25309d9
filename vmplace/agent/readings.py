"""Read accessed bits before a window ends, within a share of a CPU.

1. Once a guest is armed its bits are read after ``first_ms``, and again whenever four times as long has
   passed (model/touch_rates.py), until the window ends.
2. Each guest may take its part of ``share`` of the window, in CPU time: for readings, and for learning from
   them.  It saves what it does not use, until it has the price: what this cost when it was done last.
3. A guest that does not have the price is read once in this window.  So a large guest, whose page tables take
   long, learns more seldom, and costs no more.

A reading that comes late counts for when it was made; one that the next is due after is left out.
"""

import heapq
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vmplace.agent.clock import Clock, HostClock
from vmplace.agent.config_sections import ReadingsSection
from vmplace.agent.roster import Roster
from vmplace.agent.tracked_guest import TrackedGuest
from vmplace.model.touch_rates import reading_times
from vmplace.sampling.source import EarlyReader
from vmplace.topology.guest import GuestTopology, Identity


@dataclass
class _CpuBudget:
    """CPU time that one guest may take for readings, in ns: what was saved, and what readings cost."""

    saved: int = 0
    price: int = 0
    spent: int = 0
    is_read: bool = False

    def begin(self, part: int) -> None:
        """Begin a window, with ``part`` to spend in it."""
        if self.is_read:
            self.saved, self.price = self.saved - self.spent, self.spent
        self.saved = min(self.saved + part, max(self.price, part))
        self.spent, self.is_read = 0, self.saved >= self.price


class Readings:
    """The readings of all guests, window after window; times in s of CLOCK_MONOTONIC."""

    def __init__(
        self,
        reader: EarlyReader | None,
        section: ReadingsSection,
        window_ms: int,
        clock: Clock | None = None,
    ) -> None:
        """Without a ``reader`` nothing is ever due."""
        self._reader = reader
        self._clock = clock or HostClock()
        self._section = section
        self._after_s: list[float] = []
        self._allowance_ns = 0
        self.last(window_ms)
        self._budgets: dict[Identity, _CpuBudget] = {}
        self._due: list[tuple[float, int, TrackedGuest]] = []
        self._order = itertools.count()

    def last(self, window_ms: int) -> None:
        """Let windows last so long from now on."""
        wanted = self._reader is not None and self._section.first_ms > 0
        times_ms = reading_times(self._section.first_ms, window_ms)[:-1].tolist() if wanted else []
        self._after_s = [ms / 1000 for ms in times_ms]
        self._allowance_ns = round(self._section.share * window_ms * 1e6)

    def begin(self, guest: TrackedGuest, *, guests: int) -> None:
        """Plan the readings of a guest that was armed now, one of so many, if it can pay for them."""
        budget, armed_s = (
            self._budgets.setdefault(guest.topology.identity, _CpuBudget()),
            self._clock.monotonic(),
        )
        budget.begin(self._allowance_ns // guests)
        for after_s in self._after_s if budget.is_read else ():
            heapq.heappush(self._due, (armed_s + after_s, next(self._order), guest))

    def next_s(self) -> float | None:
        """Return when the next reading is due."""
        return self._due[0][0] if self._due else None

    def read_due(self, roster: Roster) -> None:
        """Make the readings that are due, one of each guest."""
        reader, due = self._reader, dict[str, TrackedGuest]()
        if reader is None:
            return
        while self._due and self._due[0][0] <= self._clock.monotonic():
            guest = heapq.heappop(self._due)[2]
            if not guest.is_migrating:
                due[guest.name] = guest
        for guest in due.values():
            with self.charged(guest):
                roster.tried(guest, reader.read_early)

    def end(self) -> None:
        """End the window: what was not read in time is read with the harvest."""
        self._due.clear()

    @contextmanager
    def charged(self, guest: TrackedGuest) -> Iterator[None]:
        """Have the guest pay for what is done inside, if it is read in this window."""
        started_ns = self._clock.thread_cpu_ns()
        try:
            yield
        finally:
            if budget := self._budgets.get(guest.topology.identity):
                budget.spent += self._clock.thread_cpu_ns() - started_ns

    def forget(self, guest: GuestTopology) -> None:
        """Forget a guest that ended."""
        self._budgets.pop(guest.identity, None)
