"""How long to rest between windows: not at all while there is work, longer and longer on an idle host.

The window keeps its length, so that "touched in the last window" keeps its meaning.  If sampling and planning
(a look) take much CPU time, the longest rest grows until looks take ``SHARE`` of a CPU, up to
``LONGEST_DEAR_MS``.  While all guests are left to the kernel (balancing.py), rests are so long at once: what
a look shows moves nothing, and all pay for it.  A longest rest that was configured is kept in any case.

>>> [IdleBackoff(1000, longest_ms, quiet=9, look_s=0.6).rest_ms for longest_ms in (None, 500, 2000, 8000)]
[6000, 500, 2000, 8000]
"""

from dataclasses import dataclass, replace

from vmplace.agent.look_interval import SHARE

LONGEST_CHEAP_MS = 2000
LONGEST_DEAR_MS = 10_000
"""The longest rests: a guest that changes is noticed after that time at the latest."""

QUIET_WINDOWS = 2
"""Windows without a move before the first rest: a phase change often shows one window late."""


@dataclass(frozen=True)
class IdleBackoff:
    """The rest after ``quiet`` windows in a row in which nothing moved; a look takes ``look_s`` of CPU.

    ``longest_rest_ms``: the bound that was set, None if it follows from what looks take.
    ``all_left``: all guests that may be placed are left to the kernel.
    """

    window_ms: int
    longest_rest_ms: int | None
    quiet: int = 0
    look_s: float = 0.0
    all_left: bool = False

    @property
    def rest_ms(self) -> int:
        """Return the rest before the next window: doubling from one window's length, bounded."""
        steps = self.quiet - QUIET_WINDOWS
        if steps < 0:
            return 0
        # Bounded exponent: a host may be quiet for years.
        grown_ms = LONGEST_DEAR_MS if self.all_left else self.window_ms << min(steps, 20)
        return min(grown_ms, self._longest_ms())

    def after(self, *, moved: bool, look_s: float, all_left: bool) -> "IdleBackoff":
        """Return the rest after one more window, whose look took ``look_s`` of CPU time."""
        quiet = 0 if moved else self.quiet + 1
        return replace(self, quiet=quiet, look_s=look_s, all_left=all_left)

    def _longest_ms(self) -> int:
        if self.longest_rest_ms is not None:
            return self.longest_rest_ms
        if self.all_left:
            return LONGEST_DEAR_MS
        return max(LONGEST_CHEAP_MS, min(round(1000 * self.look_s / SHARE), LONGEST_DEAR_MS))
