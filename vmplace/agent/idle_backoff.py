"""How long to rest between windows: not at all while there is work, ever longer on an idle host.

The window itself keeps its length, so that "touched in the last window" keeps its meaning.
"""

from dataclasses import dataclass

QUIET_WINDOWS = 2
"""Windows without a move before the first rest: a phase change often shows one window late."""


@dataclass(frozen=True)
class IdleBackoff:
    """The rest after ``quiet`` windows in a row in which nothing was moved."""

    window_ms: int
    longest_rest_ms: int
    quiet: int = 0

    @property
    def rest_ms(self) -> int:
        """Return the rest before the next window: doubling from one window's length, bounded."""
        steps = self.quiet - QUIET_WINDOWS
        # Bounded exponent: a host may be quiet for years.
        return min(self.window_ms << min(steps, 20), self.longest_rest_ms) if steps >= 0 else 0

    def after(self, *, moved: bool) -> "IdleBackoff":
        """Return the rest after one more window."""
        return IdleBackoff(self.window_ms, self.longest_rest_ms, 0 if moved else self.quiet + 1)
