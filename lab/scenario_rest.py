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

    ``progress``: pages moved so far, and copies there are.  ``passed_s`` is real time, ``had_s`` what of it
    others left, ``moved_until_s`` the real time until a page was last moved or copied.  Fewer than ``few``
    pages in ``quiet_s`` are rest: kernel balancing never ends to move what several nodes use.
    """

    timing: Timing
    progress: tuple[int, ...]
    few: int
    passed_s: float = 0.0
    had_s: float = 0.0
    moved_until_s: float | None = None
    moves: list[tuple[float, int]] = field(default_factory=list)

    def look(self, seconds: float, share: float, progress: tuple[int, ...]) -> None:
        """Take in that so many seconds passed, in which others left that share of the machine."""
        self.passed_s += seconds
        self.had_s += seconds * share
        moved = sum(abs(now - then) for now, then in zip(progress, self.progress, strict=True))
        self.progress = progress
        if moved:
            self.moves.append((self.had_s, moved))
            self.moved_until_s = self.passed_s

    @property
    def is_at_rest(self) -> bool:
        """Tell whether next to nothing has moved for long enough."""
        since = self.had_s - self.timing.quiet_s
        return since >= 0 and sum(moved for at, moved in self.moves if at > since) < self.few

    @property
    def is_over(self) -> bool:
        """Tell whether it has had its time: all get the least, and nobody more than the most."""
        if self.had_s >= self.timing.least_s and self.is_at_rest:
            return True
        most_s = max(self.timing.least_s, self.timing.most_s)
        return self.had_s >= most_s or self.passed_s >= LONGEST * most_s

    def note(self, who: str) -> tuple[str, ...]:
        """Return what is to be noted of one that should have come to rest by now.

        Raises TooSlowError if it had not, on a machine that was mostly others'.
        """
        if self.is_at_rest:
            return ()
        reported = f"was still moving pages after {self.passed_s:.0f} s"
        if self.had_s < SLOW * self.passed_s:
            raise TooSlowError(
                f"this machine is too slow to judge: {who} {reported}, of which others used"
                f" {1 - self.had_s / self.passed_s:.0%}",
                hint="end what else runs here, or wait for it, and try again",
            )
        return (f"it {reported}",)
