"""How long has each page been used as it is now, and so how long is that expected to last?

1. A page's heat is what was seen lately: about SPAN_NS of it.  Taken alone, it says that a move must pay for
   itself within as much time to come, and pages that are used evenly but seldom would never move.
2. The pattern of a page is as old as the time since another node came to use it most; for copies, since the
   last write that was seen to it.
   Where a controller was full lately, no pattern is older than that: calm may end as it began.
3. What lasted so long is expected to last as long again: the price of a move is spread over the pattern's
   age, in spans.  So no more is staked than was lost since the pattern began, which is the break-even rule of
   ski rental counted from there (Karlin et al., Algorithmica 1988).

Limits: a program that alternates more slowly than SPAN_NS looks steady in between.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import GuestEvidence

SPAN_NS = 173e6
"""The mean age of what heat counts: its half life of 120 ms / ln 2."""
NOBODY = -1


@dataclass(frozen=True)
class Spans:
    """Over how many spans, 1 at least, the price of a move and of copies is spread, by page [P]."""

    moves: Matrix
    copies: Matrix

    def of(self, *, copies: bool) -> Matrix:
        """Return those of moves, or of copies."""
        return self.copies if copies else self.moves


@dataclass(frozen=True)
class Steadiness:
    """Of each page [P]: index of the node that uses it most, or NOBODY; since when; since when unwritten."""

    user: npt.NDArray[np.int8]
    since_ns: Matrix
    unwritten_ns: Matrix

    @classmethod
    def unknown(cls, npages: int) -> "Steadiness":
        """Return that of pages that were never looked at."""
        return cls(np.full(npages, NOBODY, np.int8), np.zeros(npages), np.zeros(npages))

    def seen(self, guest: GuestEvidence, now_ns: float) -> "Steadiness":
        """Return it after a look."""
        most = guest.heat.argmax(axis=1)
        used = guest.heat[np.arange(len(most)), most] > 0
        user = np.where(used, most, NOBODY).astype(np.int8)
        since = np.where(user != self.user, now_ns, self.since_ns)
        if guest.calm_since_ns is not None:
            since = np.maximum(since, guest.calm_since_ns)
        unwritten = np.where(guest.written | (self.user == NOBODY), now_ns, self.unwritten_ns)
        return Steadiness(user, since, unwritten)

    def spans(self, now_ns: float) -> Spans:
        """Return over how many spans prices are spread."""
        return Spans(
            *(np.maximum((now_ns - one) / SPAN_NS, 1.0) for one in (self.since_ns, self.unwritten_ns))
        )
