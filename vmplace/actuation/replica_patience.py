"""Are copies of a guest's pages worth making now, or are they dropped as fast as they are made?

Of a table that is read and written all over, some pages are always found unwritten for a while: their copies
do not last, and each costs the guest faults when it is made and when it is dropped.  KVM lets a page
wait that lost its copies, but the next one is another page.  So the guest waits, too: twice as long each time
that most new copies were lost, half as long once they last.  So it does if KVM refuses all copies for a
reason that lasts.

Source: Carrefour (ASPLOS'13, section 3.3.2): collapses cost so much that few of them undo what copies gain.
"""

from collections.abc import Mapping

MADE, LOST = "replicated_pages", "collapsed_pages"
"""KVM's statistics of frames that got copies, and that lost them to a write, a move or lack of memory."""
AROUND = "collapsed_around"
"""KVM's statistic of those that lost them to writes around them: that was no fault of theirs.

Older kernels do not count it, for they do not do it.
"""
FEW = 64
"""Fewer lost copies tell nothing: each guest's kernel writes a page now and then."""
LOST_RATIO, KEPT_RATIO = 0.5, 0.125
"""Lost copies per new one: from where on it is not worth it, and up to where it is."""
SHORT_LIVED = "copies short-lived"
"""Why a guest waits whose copies did not last."""
FIRST_NS, LONGEST_NS = 2 * 10**9, 1024 * 10**9


class Patience:
    """What is remembered of one guest's copies; ``why``: for what reason it waits, or waited last."""

    def __init__(self) -> None:
        self.why = SHORT_LIVED
        self._made = self._lost = 0
        self._wait_ns = FIRST_NS
        self._until_ns = 0

    def waits(self, now_ns: int) -> bool:
        """Tell whether no copies are made for now."""
        return now_ns < self._until_ns

    def note_refusal(self, now_ns: int, why: str) -> None:
        """Wait, as all copies were refused that were asked for: the next ones will be, too."""
        self._wait(now_ns, f"waiting after {why}")

    def _wait(self, now_ns: int, why: str) -> None:
        self.why = why
        self._until_ns = now_ns + self._wait_ns
        self._wait_ns = min(2 * self._wait_ns, LONGEST_NS)

    def is_over(self, statistics: Mapping[str, int], now_ns: int) -> bool:
        """Tell whether to make copies now; ``statistics``: KVM's by name, since the VM began."""
        made, lost = statistics[MADE], statistics[LOST] - statistics.get(AROUND, 0)
        new, gone = made - self._made, lost - self._lost
        self._made, self._lost = made, lost
        if gone >= FEW and gone > LOST_RATIO * new:
            self._wait(now_ns, SHORT_LIVED)
        elif new >= FEW and gone <= KEPT_RATIO * new:
            self._wait_ns = max(self._wait_ns // 2, FIRST_NS)
        return now_ns >= self._until_ns
