"""How long is a window?  As short as looks are cheap: who looks often sees a change soon.

1. A look takes CPU time: to arm, to read, to learn from it, to plan.  Guests that touch more take longer.
2. A window lasts until looks have taken ``SHARE`` of one CPU, by what the last two took on average.
3. It is never shorter than ``shortest_ms``, and never longer than ``longest_ms``.

Example: looks of 40 ms of CPU time are made every 400 ms, those of 10 ms as often as is allowed, and guests
whose looks take seconds are looked at as seldom as is allowed.

>>> interval = LookInterval(250, 1000)
>>> [interval.after(cost_s).after(cost_s).window_ms for cost_s in (0.04, 0.01, 3.0)]
[400, 250, 1000]
"""

from dataclasses import dataclass, replace

SHARE = 0.1
"""Of one CPU, for looks that come more often than once in ``longest_ms``."""


@dataclass(frozen=True)
class LookInterval:
    """Times in ms; ``costs_s``: CPU time of the last two looks."""

    shortest_ms: int
    longest_ms: int
    costs_s: tuple[float, ...] = ()

    @property
    def window_ms(self) -> int:
        """Return how long the next window is: the longest until a look's cost is known."""
        if not self.costs_s:
            return self.longest_ms
        wanted_ms = round(1000 * self.look_s / SHARE)
        return min(max(wanted_ms, self.shortest_ms), self.longest_ms)

    @property
    def look_s(self) -> float:
        """Return the CPU time of a look, 0 until it is known."""
        return sum(self.costs_s) / max(len(self.costs_s), 1)

    def after(self, cost_s: float) -> "LookInterval":
        """Return the interval after a look that took ``cost_s`` of CPU time."""
        return replace(self, costs_s=(*self.costs_s, cost_s)[-2:])
