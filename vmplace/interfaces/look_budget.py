"""Limit what the answers to ``fit``, ``advise`` and parts of ``show`` cost.

To answer, the agent goes through all pages that it knows, beside its loop.  So

1. an answer is kept and given again, until the state that it follows from has changed;
2. each user but root has a share of a CPU.  A user without any left is asked to wait, and for how long.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from vmplace.agent.clock import Clock
from vmplace.errors import VmplaceError

SHARE = 0.02
"""Of a CPU, for each user, in the long run."""
MOST_S = 0.25
"""CPU time that a user may have saved."""
MOST_USERS, MOST_KEPT = 1000, 64


class OverBudgetError(VmplaceError):
    """A user has to wait before the next answer is worked out."""


@dataclass
class _Account:
    """CPU seconds that a user may still take, below 0 after an answer that took more, and as of when."""

    left_s: float
    at_s: float


class LookBudget:
    """Answers by what was asked, and the accounts of users."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accounts: dict[int, _Account] = {}
        self._state: object = None
        self._kept: dict[Hashable, Any] = {}

    def answer(self, uid: int, state: object, question: Hashable, work: Callable[[], Any]) -> Any:
        """Return what ``work`` returns, or did while ``state`` was the same; raises OverBudgetError."""
        if state != self._state:
            self._state, self._kept = state, {}
        if question not in self._kept:
            answer = self._worked_out(uid, work)
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[question] = answer
        return self._kept[question]

    def _worked_out(self, uid: int, work: Callable[[], Any]) -> Any:
        account = self._account(uid)
        if uid != 0 and account.left_s <= 0:
            raise OverBudgetError(
                f"answers to user {uid} have used up their share of the agent's CPU time ({SHARE:.0%})",
                hint=f"ask again in {-account.left_s / SHARE + 1:.0f} s, or less often",
            )
        started_ns = self._clock.thread_cpu_ns()
        try:
            return work()
        finally:
            account.left_s -= (self._clock.thread_cpu_ns() - started_ns) / 1e9

    def _account(self, uid: int) -> _Account:
        now_s = self._clock.monotonic()
        if len(self._accounts) >= MOST_USERS:
            self._accounts.clear()
        account = self._accounts.setdefault(uid, _Account(MOST_S, now_s))
        account.left_s = min(account.left_s + (now_s - account.at_s) * SHARE, MOST_S)
        account.at_s = now_s
        return account
