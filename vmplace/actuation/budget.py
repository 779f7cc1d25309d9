"""How much may be moved now?  A token bucket, pure: the caller says what time it is."""

import math

from vmplace.topology.guest import HUGE_BYTES


class Budget:
    """At most ``bytes_per_s``, plus what was saved up in ``burst_s`` seconds of quiet.

    Over any stretch of t seconds no more than ``bytes_per_s * t + capacity_bytes`` is granted by ``take``.
    What is charged was used already, however much that is: as much as the bucket holds, or the caller says,
    is made good before more is granted, and the rest is forgotten.  None for ``bytes_per_s`` means no limit.
    """

    def __init__(self, bytes_per_s: float | None, *, burst_s: float = 1.0) -> None:
        self._rate = bytes_per_s
        # A bucket smaller than a huge page would never let one through.
        self.capacity_bytes = max(float(HUGE_BYTES), (bytes_per_s or 0.0) * burst_s)
        self._tokens = self.capacity_bytes
        self._filled_ns: int | None = None

    def available_bytes(self, now_ns: int) -> int:
        """Return what may be moved at ``now_ns`` (monotonic; a clock that steps back grants nothing)."""
        self._fill(now_ns)
        return 1 << 62 if self._rate is None else max(0, math.floor(self._tokens))

    def take(self, size_bytes: int, now_ns: int) -> bool:
        """Take ``size_bytes`` if they are there, all or nothing."""
        if size_bytes > self.available_bytes(now_ns):
            return False
        self._tokens -= size_bytes if self._rate is not None else 0
        return True

    def is_full(self, now_ns: int) -> bool:
        """Tell whether nothing more can be saved up; always, if there is no limit."""
        return self.available_bytes(now_ns) >= math.floor(self.capacity_bytes)

    def charge(self, size_bytes: int, now_ns: int, owed_bytes: float = 0.0) -> None:
        """Take what was used already; if it was not there, nothing is granted until that is made good.

        ``owed_bytes``: so much is made good in any case, also if it is more than the bucket holds.
        """
        self._fill(now_ns)
        if self._rate is not None:
            self._tokens = max(self._tokens - size_bytes, -max(self.capacity_bytes, owed_bytes))

    def refund(self, size_bytes: int) -> None:
        """Give back what was taken for pages that did not move after all."""
        self._tokens = min(self.capacity_bytes, self._tokens + size_bytes)

    def wait_s(self, size_bytes: int, now_ns: int) -> float | None:
        """Return in how many seconds ``size_bytes`` will be there; None = never."""
        self._fill(now_ns)
        # Of whole bytes, as they are granted: else the rest of one would be waited for in no time at all.
        missing = size_bytes - math.floor(self._tokens)
        if self._rate is None or missing <= 0:
            return 0.0
        if not self._rate or size_bytes > self.capacity_bytes:
            return None
        return missing / self._rate

    def _fill(self, now_ns: int) -> None:
        elapsed_ns = max(0, now_ns - self._filled_ns) if self._filled_ns is not None else 0
        self._filled_ns = max(now_ns, self._filled_ns or now_ns)
        if self._rate is not None:
            self._tokens = min(self.capacity_bytes, self._tokens + self._rate * elapsed_ns / 1e9)
