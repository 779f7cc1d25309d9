"""Are copies of a guest's pages worth making now, or are they dropped as fast as they are made?

Of a table that is read and written all over, some pages are always found unwritten for a while: their copies
do not last, and each costs the guest faults when it is made and when it is dropped.  KVM lets a page
wait that lost its copies, but the next one is another page.  So the guest waits, too: twice as long each time
that most new copies were lost, half as long once they last.

Source: Carrefour (ASPLOS'13, section 3.3.2): collapses cost so much that few of them undo what copies gain.
"""

FEW = 64
"""Fewer lost copies tell nothing: each guest's kernel writes a page now and then."""
LOST_RATIO, KEPT_RATIO = 0.5, 0.125
"""Lost copies per new one: from where on it is not worth it, and up to where it is."""
FIRST_NS, LONGEST_NS = 2 * 10**9, 1024 * 10**9


class Patience:
    """What is remembered of one guest's copies; pages are counted by KVM, since the VM began."""

    def __init__(self) -> None:
        self._made = self._lost = 0
        self._wait_ns = FIRST_NS
        self._until_ns = 0

    def is_over(self, made: int, lost: int, now_ns: int) -> bool:
        """Tell whether to make copies now; ``made``, ``lost``: pages that got copies and that lost them."""
        new, gone = made - self._made, lost - self._lost
        self._made, self._lost = made, lost
        if gone >= FEW and gone > LOST_RATIO * new:
            self._until_ns = now_ns + self._wait_ns
            self._wait_ns = min(2 * self._wait_ns, LONGEST_NS)
        elif new >= FEW and gone <= KEPT_RATIO * new:
            self._wait_ns = max(self._wait_ns // 2, FIRST_NS)
        return now_ns >= self._until_ns
