"""Did it help?  What was moved for a guest is a trial: measured before and after, kept or undone, remembered.

1. Nothing moves before the guest's cost is known: what an instruction takes, by counters, over ``BEFORE``
   windows.
2. A window in which its pages moved begins a trial.  It is judged once ``AFTER`` windows without a move have
   passed; the cost of the windows in between is nobody's.
3. Worse is what is beyond the noise of both sides and beyond ``TOLERANCE``.  The first placement is undone
   then, exactly; a later one stays, as the journal knows only what was before the first, but no more moves.
4. Either way the guest is left alone for a while, which doubles each time; a trial that is kept ends that.

A guest whose work changes at the same moment may be judged wrongly: it is tried again later.

Source: the noise is that of Welch's test (Biometrika 34, 1947).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

BEFORE, AFTER = 4, 4
"""Windows whose cost is compared: fewer before say too little to judge by."""
TOLERANCE = 0.03
ERRORS = 3.0
"""How many standard errors a difference must have."""
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0


class Verdict(Enum):
    """What becomes of what was moved."""

    KEEP = "keep"
    UNDO = "undo"
    HOLD = "hold"


@dataclass(frozen=True)
class Trial:
    """Where one guest stands.  Costs are in any unit, per unit of work; the last of each is the newest.

    ``trying``: something moved since ``before``.  ``kept``: a placement was kept before.
    ``left_alone_until`` and ``wait_s`` in seconds of the caller's clock; ``summary``: the last verdict
    in words, ``ratio``: its cost after over that before.
    """

    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    trying: bool = False
    kept: bool = False
    left_alone_until: float = 0.0
    wait_s: float = FIRST_WAIT_S
    summary: str = ""
    ratio: float | None = None

    def after_window(
        self, cost: float | None, *, moved: bool, now_s: float
    ) -> "tuple[Trial, Verdict | None]":
        """Return the state after a window and what must be done now, if a trial has ended.

        ``cost``: of this window, None if it could not be measured.  ``moved``: whether pages moved after it.
        """
        if cost is not None:
            measured = replace(self, after=(*self.after, cost)) if self.trying else self._rested(cost)
        else:
            measured = self
        if moved:
            # A guest without a known cost is not tried: nobody could tell.
            return replace(measured, trying=len(measured.before) >= BEFORE, after=()), None
        if not measured.trying or len(measured.after) < AFTER:
            return measured, None
        return measured._judged(now_s)

    def is_measured(self, cost: float | None) -> bool:
        """Return whether enough is known to move something; ``cost`` is that of the window that just ended.

        A guest that cannot be measured is not waited for.
        """
        return self.trying or cost is None or len(self.before) + 1 >= BEFORE

    def is_left_alone(self, now_s: float) -> bool:
        """Return whether nothing may be moved for the guest."""
        return now_s < self.left_alone_until

    def _rested(self, cost: float) -> "Trial":
        return replace(self, before=(*self.before, cost)[-BEFORE:])

    def _after_ratio(self) -> float:
        return float(np.mean(self.after)) / float(np.mean(self.before))

    def _change(self) -> str:
        return f"an instruction takes {100 * (self._after_ratio() - 1):+.0f} % since its memory moved"

    def _judged(self, now_s: float) -> "tuple[Trial, Verdict]":
        summary, ratio = self._change(), self._after_ratio()
        if not is_worse(self.before, self.after):
            return Trial(before=self.after, kept=True, summary=f"kept: {summary}", ratio=ratio), Verdict.KEEP
        verdict = Verdict.HOLD if self.kept else Verdict.UNDO
        word = "left as it is" if self.kept else "undone"
        summary = f"{word}: {summary}; not tried again for {self.wait_s:.0f} s"
        wait_s = min(2 * self.wait_s, LONGEST_WAIT_S)
        return Trial((), (), False, self.kept, now_s + self.wait_s, wait_s, summary, ratio), verdict


def is_worse(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether the cost rose beyond the noise of both (Welch), and by more than TOLERANCE."""
    rise, error = _rise_and_error(before, after)
    return rise > TOLERANCE * float(np.mean(before)) and rise > ERRORS * error


def _rise_and_error(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    rise = float(np.mean(after) - np.mean(before))
    return rise, float(np.sqrt(np.var(before, ddof=1) / len(before) + np.var(after, ddof=1) / len(after)))
