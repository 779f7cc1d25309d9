"""Has a manager acted long enough, and has it come to rest?

1. Times are those of a machine that does nothing else and on which guests do all they declare: a second in
   which others use half of the machine is half a second, and so is one on a machine on which guests could
   do half before the manager was there.  Guests that it slows down itself buy it no time.
2. A manager that says how often it has looked at its guests is at rest only after some such rounds in which
   it moved next to nothing: on a slow machine it thinks for longer, too.
"""

from dataclasses import dataclass, field

from lab.errors import TooSlowError
from lab.machine_share import FREE
from lab.scenario import Timing

LONGEST = 6
"""Times ``most_s`` that a manager gets on a machine that is slow, or does other things, too."""
AWAITED = 2
"""Times ``most_s`` of a fast machine that one that comes to rest gets: placement is judged at rest."""
FEW_TOUCHES = 0.8
"""Guests that make less than this share of what they are to make lack time."""
QUIET_ROUNDS = 4
"""What a manager learned in one round shows in what it does in the next ones."""


@dataclass
class Acting:
    """A manager at work, as it is looked at now and then.

    ``rests``: it is one that comes to rest; ``longest_s``: what of real time others got before it.
    ``speed``: the share of their declared touches that guests could make before it acted.
    ``progress``: pages moved so far, and copies there are.  ``passed_s`` is real time, ``share_s`` what of it
    others left, ``work_s`` the seconds for which guests did what they are to do (None: nobody knows),
    ``moved_until_s`` the real time until a page was last moved or copied.  Fewer than ``few`` pages in
    ``quiet_s`` are rest: kernel balancing never ends to move what several nodes use.
    """

    timing: Timing
    progress: tuple[int, ...]
    few: int
    rests: bool = True
    longest_s: float = 0.0
    speed: float = 1.0
    passed_s: float = 0.0
    share_s: float = 0.0
    work_s: float | None = None
    rounds: int | None = None
    moved_until_s: float | None = None
    moves: list[tuple[float, int, int]] = field(default_factory=list)

    def look(
        self,
        seconds: float,
        share: float,
        progress: tuple[int, ...],
        *,
        work_s: float | None = None,
        rounds: int | None = None,
    ) -> None:
        """Take in that so many seconds passed, in which others left that share of the machine.

        ``work_s`` and ``rounds`` are since the manager's start; None where nobody knows.
        """
        self.passed_s += seconds
        self.share_s += seconds * share
        self.work_s = self.work_s if work_s is None else work_s
        self.rounds = self.rounds if rounds is None else rounds
        moved = sum(abs(now - then) for now, then in zip(progress, self.progress, strict=True))
        self.progress = progress
        if moved:
            self.moves.append((self.had_s, self.rounds or 0, moved))
            self.moved_until_s = self.passed_s

    @property
    def had_s(self) -> float:
        """Return the seconds that it had, of a machine that is fast enough and does nothing else."""
        return min(self.share_s, self.speed * self.passed_s)

    @property
    def is_at_rest(self) -> bool:
        """Tell whether next to nothing has moved for long enough, and for enough rounds."""
        since_s = self.had_s - self.timing.quiet_s
        since_round = None if self.rounds is None else self.rounds - QUIET_ROUNDS
        if since_s < 0 or (since_round is not None and since_round < 0):
            return False
        late = (
            moved
            for at_s, in_round, moved in self.moves
            if at_s > since_s or (since_round is not None and in_round >= since_round)
        )
        return sum(late) < self.few

    @property
    def is_over(self) -> bool:
        """Tell whether it has had its time: all get the least, and nobody more than the most.

        But one that comes to rest is waited for: where it puts memory is judged once it is done, and how long
        that took is reported.  Those that do not come to rest get as long, whether they move pages or not.
        """
        has_as_long = self.rests or self.passed_s >= self.longest_s
        if self.had_s >= self.timing.least_s and self.is_at_rest and has_as_long:
            return True
        most_s = max(self.timing.least_s, self.timing.most_s)
        if self.passed_s >= LONGEST * most_s:
            return True
        return self.had_s >= most_s and not self._is_awaited(most_s)

    def _is_awaited(self, most_s: float) -> bool:
        if self.rests:
            return self.is_slow or self.had_s < AWAITED * most_s
        return self.passed_s < self.longest_s

    @property
    def is_slow(self) -> bool:
        """Tell whether the machine was too slow, or too much others', for one that lacked time."""
        return self.had_s < FREE * self.passed_s

    @property
    def summary(self) -> str:
        """Return in words how long it acted, for a log."""
        rounds = "" if self.rounds is None else f", {self.rounds} rounds"
        last = "no page moved" if self.moved_until_s is None else f"last move at {self.moved_until_s:.0f} s"
        return f"{self.passed_s:.0f} s, worth {self.had_s:.0f} s of an idle machine{rounds}; {last}"

    def notes(self, who: str) -> tuple[str, ...]:
        """Return what is to be noted of one that had not come to rest, or under which guests did too little.

        Raises TooSlowError if it had not come to rest on a machine that was slow or mostly others'.
        """
        if self.rests and not self.is_at_rest:
            reported = f"had not come to rest after {self.passed_s:.0f} s"
            if self.is_slow:
                worth = f"{self.had_s:.0f} s of a machine with nothing else to do"
                raise TooSlowError(f"{who} {reported}, which were {worth}")
            return (f"it {reported}", *self._of_guests())
        return self._of_guests()

    def _of_guests(self) -> tuple[str, ...]:
        if self.work_s is None or self.is_slow or self.work_s >= FEW_TOUCHES * self.passed_s:
            return ()
        made = self.work_s / self.passed_s
        return (f"while it acted a guest made {made:.0%} of its touches, though the machine was free",)
