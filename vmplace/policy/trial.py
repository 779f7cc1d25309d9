"""Did it help?  What was moved for a guest is a trial: measured before and after, kept or undone, remembered.

1. Nothing moves before the guest's cost is known: what an instruction takes, by counters, over ``BEFORE``
   samples.  A sample is what windows cost that took ``SAMPLE_S`` together: a longer window is one.
2. A window in which its pages moved begins a trial.  It is judged once ``AFTER`` samples without a move have
   passed; the cost of the windows in between is nobody's.  A guest whose pages move again and again is
   waited for as long as ``LONGEST`` samples take: from then on nothing moves for it until it is judged, and
   a move that is made all the same ends no sample.
3. Worse is what is beyond the noise of both sides and beyond ``TOLERANCE``.  The first placement is undone
   then, exactly; a later one stays, as the journal knows only what was before the first, but no more moves.
4. Either way the guest is left alone for a while, which doubles each time; a trial that is kept ends that.
5. What is to be undone stays due as long as the guest may not be changed, or if not all of it went back: that
   is tried again, after twice as long each time.  Nothing moves meanwhile; what root has moved ends it.

A guest whose work changes at the same moment may be judged wrongly: it is tried again later.

Source: the noise is that of Welch's test (Biometrika 34, 1947).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

BEFORE, AFTER = 4, 4
"""Samples whose cost is compared: fewer before say too little to judge by."""
LONGEST = 16
"""Samples after which a trial is brought to its end: who moves a little and often would never be judged."""
SAMPLE_S = 1.0
"""What a shorter time tells is noise, and what a move itself costs would count as what came of it."""
ROUNDING = 1e-9
"""Ten times 0.1 s are a little less than 1 s."""
TOLERANCE = 0.03
ERRORS = 3.0
"""How many standard errors a difference must have."""
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0
NOTHING_SAMPLED = (0.0, 0.0)
YET, NOT_ALL = "to be undone", "not all undone"


class Verdict(Enum):
    """What becomes of what was moved."""

    KEEP = "keep"
    UNDO = "undo"
    HOLD = "hold"


@dataclass(frozen=True)
class Trial:
    """Where one guest stands.  Costs are in any unit, per unit of work; the last of each is the newest.

    ``sampled``: cost times seconds, and the seconds, of windows that are no sample yet.
    ``trying``: something moved since ``before``; ``tried``: as many samples ago.  ``kept``: a placement was
    kept before.
    ``left_alone_until`` and ``wait_s`` in seconds of the caller's clock; ``summary``: the last verdict
    in words, ``ratio``: its cost after over that before; ``is_undo_due``: what moved is yet to be undone,
    from ``undo_at_s`` on; after a try that failed the next one waits ``undo_wait_s``.
    """

    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    sampled: tuple[float, float] = (0.0, 0.0)
    trying: bool = False
    tried: float = 0.0
    kept: bool = False
    left_alone_until: float = 0.0
    wait_s: float = FIRST_WAIT_S
    summary: str = ""
    ratio: float | None = None
    is_undo_due: bool = False
    undo_at_s: float = 0.0
    undo_wait_s: float = FIRST_WAIT_S

    def after_window(
        self,
        cost: float | None,
        *,
        moved: bool,
        now_s: float,
        window_s: float = SAMPLE_S,
        sample_s: float = SAMPLE_S,
    ) -> "tuple[Trial, Verdict | None]":
        """Return the state after a window and what must be done now, if a trial has ended.

        ``cost``: of this window of ``window_s``, None if it could not be measured; ``sample_s``: how long a
        sample is.  ``moved``: whether pages moved after the window.
        """
        measured = self._with_window(cost, window_s, sample_s)
        if moved and not measured._is_overdue():
            # A guest without a known cost is not tried: nobody could tell.
            is_tried = len(measured.before) >= BEFORE
            again = replace(measured, trying=is_tried, after=(), sampled=NOTHING_SAMPLED, is_undo_due=False)
            return again, None
        if not measured.trying or len(measured.after) < AFTER:
            return measured, None
        return measured._judged(now_s)

    def is_measured(
        self, cost: float | None, *, window_s: float = SAMPLE_S, sample_s: float = SAMPLE_S
    ) -> bool:
        """Return whether enough is known to move something; ``cost`` is that of the window that just ended.

        A guest that cannot be measured is not waited for.  One that is tried may move until that takes long.
        """
        known = self._with_window(cost, window_s, sample_s)
        return cost is None or (not known._is_overdue() if self.trying else len(known.before) >= BEFORE)

    def is_left_alone(self, now_s: float) -> bool:
        """Return whether nothing may be moved for the guest."""
        return now_s < self.left_alone_until

    def undone(self, now_s: float) -> "Trial":
        """Return the state once what was due is undone: measured anew, and left alone at first."""
        until_s = max(self.left_alone_until, now_s + FIRST_WAIT_S)
        return replace(
            self,
            before=(),
            sampled=NOTHING_SAMPLED,
            left_alone_until=until_s,
            summary=self._called("undone"),
            is_undo_due=False,
        )

    def anew(self) -> "Trial":
        """Return the state without what was measured, after which something may have moved unseen."""
        if self.is_undo_due:
            return replace(self, before=(), after=(), sampled=NOTHING_SAMPLED)
        return Trial(kept=True, left_alone_until=self.left_alone_until, wait_s=self.wait_s)

    def superseded(self) -> "Trial":
        """Return the state once something else moved than what was due to be undone."""
        return replace(self, is_undo_due=False)

    def not_undone(self, now_s: float) -> "Trial":
        """Return the state if not all went back: it stays due, and is tried again after a while.

        After an hour of tries, what is still away stays: a few pages that cannot move must not hold up all.
        """
        if self.undo_wait_s >= LONGEST_WAIT_S:
            return replace(self.undone(now_s), summary=self._called(NOT_ALL), undo_wait_s=FIRST_WAIT_S)
        return replace(
            self,
            summary=self._called(NOT_ALL),
            undo_at_s=now_s + self.undo_wait_s,
            undo_wait_s=min(2 * self.undo_wait_s, LONGEST_WAIT_S),
        )

    def left_as_it_is(self, why: str) -> "Trial":
        """Return the state if what was due to be undone stays."""
        return replace(self, summary=self._called(f"left as it is ({why})"), is_undo_due=False)

    def is_to_undo(self, now_s: float) -> bool:
        """Return whether what moved is to be undone now."""
        return self.is_undo_due and now_s >= self.undo_at_s

    def _called(self, word: str) -> str:
        """Return the last verdict with another word for what became of it."""
        return f"{word}:{self.summary.partition(':')[2]}"

    def _is_overdue(self) -> bool:
        return self.tried >= LONGEST * (1 - ROUNDING)

    def _with_window(self, cost: float | None, window_s: float, sample_s: float) -> "Trial":
        tried = self.tried + window_s / max(window_s, sample_s) if self.trying else 0.0
        return replace(self, tried=tried)._with_cost(cost, window_s, sample_s)

    def _with_cost(self, cost: float | None, window_s: float, sample_s: float) -> "Trial":
        if cost is None:
            return self
        total, seconds = self.sampled[0] + cost * window_s, self.sampled[1] + window_s
        if seconds < sample_s * (1 - ROUNDING):
            return replace(self, sampled=(total, seconds))
        known, sample = replace(self, sampled=NOTHING_SAMPLED), total / seconds
        if self.trying:
            return replace(known, after=(*self.after, sample))
        return replace(known, before=(*self.before, sample)[-BEFORE:])

    def _after_ratio(self) -> float:
        return float(np.mean(self.after)) / float(np.mean(self.before))

    def _change(self) -> str:
        return f"an instruction takes {100 * (self._after_ratio() - 1):+.0f} % since its memory moved"

    def _judged(self, now_s: float) -> "tuple[Trial, Verdict]":
        summary, ratio = self._change(), self._after_ratio()
        if not is_worse(self.before, self.after):
            return Trial(before=self.after, kept=True, summary=f"kept: {summary}", ratio=ratio), Verdict.KEEP
        verdict = Verdict.HOLD if self.kept else Verdict.UNDO
        word = "left as it is" if self.kept else YET
        summary = f"{word}: {summary}; not tried again for {self.wait_s:.0f} s"
        wait_s = min(2 * self.wait_s, LONGEST_WAIT_S)
        until_s = now_s + self.wait_s
        is_due = verdict is Verdict.UNDO
        return Trial(
            kept=self.kept,
            left_alone_until=until_s,
            wait_s=wait_s,
            summary=summary,
            ratio=ratio,
            is_undo_due=is_due,
        ), verdict


def is_worse(
    before: Sequence[float],
    after: Sequence[float],
    *,
    tolerance: float = TOLERANCE,
    errors: float = ERRORS,
) -> bool:
    """Return whether the cost rose beyond the noise of both (Welch), and by more than the tolerance."""
    rise, error = _rise_and_error(before, after)
    return rise > tolerance * float(np.mean(before)) and rise > errors * error


def _rise_and_error(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    rise = float(np.mean(after) - np.mean(before))
    return rise, float(np.sqrt(np.var(before, ddof=1) / len(before) + np.var(after, ddof=1) / len(after)))
