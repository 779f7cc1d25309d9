"""Time that passes only while somebody sleeps or looks."""


class SlowClock:
    """A clock that only sleeping and looking move."""

    def __init__(self) -> None:
        self.now_ns, self.slept_s = 0, 0.0

    def __call__(self) -> int:
        self.now_ns += 1000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)
        self.slept_s += seconds
