"""How many pages may one call move so that it stays short?  Pure: fed with what calls really took.

move_pages(2) holds up the guest's faults on the pages in flight, so a call must stay below 20 ms; the aim is
5 ms.  A call has a fixed price (it drains all CPUs' LRU batches) that no batch size can lower: where it is
high, the aim rises to twice that price, never above half of the limit.
"""

TARGET_NS = 5_000_000
LIMIT_NS = 20_000_000
_FORGET = 1 / 64


class BatchSize:
    """The size of the next batch, in pages: grows at most twofold per call, shrinks at once."""

    def __init__(
        self,
        first: int = 16,
        *,
        most: int = 4096,
        target_ns: int = TARGET_NS,
        limit_ns: int = LIMIT_NS,
    ) -> None:
        self.pages = first
        self._most = most
        self._target_ns = min(target_ns, limit_ns // 2)
        self._ceiling_ns = limit_ns // 2
        self._fixed_ns: float | None = None

    def took(self, pages: int, duration_ns: int) -> None:
        """Learn from a call that moved ``pages`` in ``duration_ns``."""
        if pages <= 0:
            return
        self._learn_fixed(max(duration_ns, 1))
        aim = max(self._target_ns, min(2 * (self._fixed_ns or 0), self._ceiling_ns))
        fitting = int(pages * aim / max(duration_ns, 1))
        if duration_ns > aim:
            self.pages = max(1, min(self.pages, fitting))
        elif pages >= self.pages:
            # A smaller call than allowed (the end of a chunk) tells nothing about larger ones.
            self.pages = max(1, min(2 * pages, fitting, self._most))

    def _learn_fixed(self, duration_ns: int) -> None:
        # The shortest call bounds the fixed price from above; forget it slowly, hosts change their load.
        if self._fixed_ns is None or duration_ns < self._fixed_ns:
            self._fixed_ns = duration_ns
        else:
            self._fixed_ns += (duration_ns - self._fixed_ns) * _FORGET
