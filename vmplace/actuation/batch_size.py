"""How many pages may one call move so that it stays short?  Pure: fed with what calls really took.

move_pages(2) holds up the guest's faults on the pages in flight, so a call must stay below 20 ms; the aim is
5 ms.  1. A call has a fixed price, whatever its size (it drains the LRU batches of all CPUs, mm/migrate.c:
lru_cache_disable): one page is moved alone now and then to learn it.  2. What a call takes beyond that, per
page, is believed at once when it rises and slowly when it falls.  3. The next batch is what fits, at most
twice the last.
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
        self._most = most
        self._probes = probes
        self._target_ns = target_ns
        self._limit_ns = limit_ns
        self._fixed: list[int] = []
        self._page_ns = 0.0
        self._calls_since_probe = _PROBE_EVERY

    @property
    def pages(self) -> int:
        """Return how many pages the next call may move."""
        return 1 if self._probes and self._calls_since_probe >= _PROBE_EVERY else self._size

    def took(self, pages: int, duration_ns: int) -> None:
        """Learn from a call that moved ``pages`` in ``duration_ns``."""
        self._calls_since_probe += 1
        if pages == 1 and self._probes:
            self._fixed = [*self._fixed, duration_ns][-_PROBES_KEPT:]
            self._calls_since_probe = 0
        elif pages * 4 >= self._size or duration_ns > self._fixed_ns + self._target_ns:
            # Much smaller calls (the end of a chunk) are mostly fixed price and tell little per page.
            self._learn(pages, max(1.0, duration_ns - self._fixed_ns) / pages)

    @property
    def _fixed_ns(self) -> int:
        # The least of some probes: noise only ever adds.
        return min(self._fixed, default=0)

    def _learn(self, pages: int, page_ns: float) -> None:
        self._page_ns = max(page_ns, 0.8 * self._page_ns + 0.2 * page_ns)
        fitting = int(self._allowed_ns() / self._page_ns)
        self._size = max(1, min(fitting, max(self._size, 2 * pages), 2 * self._size, self._most))

    def _allowed_ns(self) -> float:
        """Return what the pages of a call may take beside the fixed price.

        Where that price alone breaks the limit, tiny batches would only mean more such calls.
        """
        spare = (self._limit_ns - self._fixed_ns) / 2
        return max(min(float(self._target_ns), spare), self._target_ns / 4)
