"""Has a manager acted long enough, and has it come to rest?

Times are those of a machine that does nothing else: a second in which others use half of it is half a second.
"""

from dataclasses import dataclass, field

from lab.errors import TooSlowError
from lab.scenario import Timing

LONGEST = 4
"""Times ``most_s`` that a manager gets on a machine that does other things, too."""
SLOW = 0.7
"""With less of the machine than this, a manager that has not come to rest lacked time."""


@dataclass
class Acting:
    """A manager at work, as it is looked at now and then.

    ``progress``: what grows as pages are moved or copied.  ``passed_s`` is real time, ``had_s`` what of it
    others left, ``quiet_s`` the same since progress was last seen, ``moved_until_s`` real time until then.
    """

    timing: Timing
    progress: tuple[int, ...]
    passed_s: float = 0.0
    had_s: float = 0.0
    quiet_s: float = field(default=0.0)
    moved_until_s: float | None = None

    def look(self, seconds: float, share: float, progress: tuple[int, ...]) -> None:
        """Take in that so many seconds passed, in which others left that share of the machine."""
        self.passed_s += seconds
        self.had_s += seconds * share
        self.quiet_s += seconds * share
        if progress != self.progress:
            self.progress, self.quiet_s, self.moved_until_s = progress, 0.0, self.passed_s

    @property
    def is_at_rest(self) -> bool:
        """Tell whether nothing has moved for long enough."""
        return self.quiet_s >= self.timing.quiet_s

    @property
    def is_over(self) -> bool:
        """Tell whether it has had its time: all get the least, and nobody more than the most."""
        if self.had_s >= self.timing.least_s and self.is_at_rest:
            return True
        most_s = max(self.timing.least_s, self.timing.most_s)
        return self.had_s >= most_s or self.passed_s >= LONGEST * most_s

    def note(self, who: str) -> tuple[str, ...]:
        """Return what is to be told of one that should have come to rest by now.

        Raises TooSlowError if it had not, on a machine that was mostly others'.
        """
        if self.is_at_rest:
            return ()
        told = f"was still moving pages after {self.passed_s:.0f} s"
        if self.had_s < SLOW * self.passed_s:
            raise TooSlowError(
                f"this machine is too slow to judge: {who} {told}, of which others used"
                f" {1 - self.had_s / self.passed_s:.0%}",
                hint="end what else runs here, or wait for it, and try again",
            )
        return (f"it {told}",)
