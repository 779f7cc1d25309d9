"""How many pages may one call move so that it stays short?  Pure: callers report how long calls took.

move_pages(2) holds up the guest's faults on the pages in flight, so a call must stay below 20 ms; the aim is
5 ms.  1. A call has a fixed price, whatever its size (it drains the LRU batches of all CPUs, mm/migrate.c:
lru_cache_disable): one page is moved alone now and then to learn it.  2. What a call takes beyond that, per
page, is believed at once when it rises and slowly when it falls.  3. The next batch is what fits, at most
twice the last.  4. Where the fixed price alone breaks the limit (an overloaded or emulated host), no size
can keep it: pages then get as much time as the price, as tiny batches would only mean more such calls.
"""

TARGET_NS = 5_000_000
LIMIT_NS = 20_000_000
_PROBE_EVERY = 64
_PROBES_KEPT = 4


class BatchSize:
    """The size of the next batch; ``probes`` False for huge pages, one of which is no cheap probe."""

    def __init__(
        self,
        first: int = 16,
        *,
        most: int = 4096,
        probes: bool = True,
        target_ns: int = TARGET_NS,
        limit_ns: int = LIMIT_NS,
    ) -> None:
        self._size = first
        # A batch of one would be a probe, and teach nothing about the price per page.
        self._least = 4 if probes else 1
        self._most = most
        self._probes = probes
        self._target_ns = target_ns
        self._limit_ns = limit_ns
        self._probed: list[int] = []
        self._page_ns = 0.0
        self._calls_to_probe = 0
        self._probe_pause = 1

    @property
    def pages(self) -> int:
        """Return how many pages the next call may move."""
        return 1 if self._probes and self._calls_to_probe <= 0 else self._size

    def took(self, pages: int, duration_ns: int) -> None:
        """Learn from a call that moved ``pages`` in ``duration_ns``."""
        self._calls_to_probe -= 1
        if pages == 1 and self._probes:
            self._learn_fixed(duration_ns)
        elif pages * 4 >= self._size or duration_ns > self._fixed_ns + self._target_ns:
            # Much smaller calls (the end of a chunk) are mostly fixed price and tell little per page.
            self._learn(pages, max(1.0, duration_ns - self._fixed_ns) / pages)

    def _learn_fixed(self, duration_ns: int) -> None:
        # Probes are frequent at first, when nothing is known: after 1, 2, 4 ... 64 calls.
        self._probed = [*self._probed, duration_ns][-_PROBES_KEPT:]
        self._calls_to_probe = self._probe_pause
        self._probe_pause = min(2 * self._probe_pause, _PROBE_EVERY)

    @property
    def _fixed_ns(self) -> int:
        # The worst of the last probes: the price's own ups and downs must not be blamed on the pages.
        return max(self._probed, default=0)

    def _learn(self, pages: int, page_ns: float) -> None:
        self._page_ns = max(page_ns, (self._page_ns + page_ns) / 2)
        fitting = int(self._allowed_ns() / self._page_ns)
        self._size = max(self._least, min(fitting, max(self._size, 2 * pages), 2 * self._size, self._most))

    def _allowed_ns(self) -> float:
        """Return what the pages of a call may take beside the fixed price."""
        if self._fixed_ns >= self._limit_ns:
            return float(self._fixed_ns)
        spare = (self._limit_ns - self._fixed_ns) / 2
        return max(min(float(self._target_ns), spare), self._target_ns / 2)


class BatchSizes:
    """The two sizes of one guest: a huge page costs what hundreds of small ones cost.

    ``limit_ns`` is what a call may take; a quarter of it is aimed at, because calls vary.
    """

    def __init__(self, limit_ns: int = LIMIT_NS) -> None:
        target_ns = min(TARGET_NS, limit_ns // 4)
        self.small = BatchSize(target_ns=target_ns, limit_ns=limit_ns)
        self.huge = BatchSize(1, most=64, probes=False, target_ns=target_ns, limit_ns=limit_ns)
