"""When may a guest be moved?  Times of the week, as an operator writes them: ``Mon-Fri 22:00-06:00``.

A stretch that ends before it begins goes on past midnight; its days are those on which it begins.
"""

import re
from dataclasses import dataclass

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MINUTES = 24 * 60
FORM = 'days and hours such as "Mon-Fri 22:00-06:00", "Sat,Sun 00:00-24:00" or "01:30-05:00"'
_DAY = "|".join(DAYS)
_STRETCH = re.compile(
    rf"(?:(?P<days>(?:{_DAY})(?:[-,](?:{_DAY}))*)\s+)?(?P<begin>\d\d:\d\d)-(?P<end>\d\d:\d\d)", re.ASCII
)


@dataclass(frozen=True)
class Stretch:
    """Minutes since midnight from ``begin`` up to ``end``, on ``days`` (0 = Monday)."""

    days: frozenset[int]
    begin: int
    end: int

    def has(self, weekday: int, minute: int) -> bool:
        """Tell whether a minute of a weekday lies in it."""
        if self.begin < self.end:
            return weekday in self.days and self.begin <= minute < self.end
        late, early = minute >= self.begin, minute < self.end
        return (late and weekday in self.days) or (early and (weekday - 1) % 7 in self.days)


def parse_stretch(text: str) -> Stretch:
    """Parse one stretch; raises ValueError, which says what is wrong."""
    found = _STRETCH.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text.strip()[:40]!r} is no time of the week")
    begin, end = _minutes(found["begin"]), _minutes(found["end"])
    if begin in {end, DAY_MINUTES}:
        raise ValueError(f"{text.strip()!r} has no minute in it")
    return Stretch(_days(found["days"]), begin, end)


def is_open(stretches: tuple[Stretch, ...], weekday: int, minute: int) -> bool:
    """Tell whether a minute lies in one of them; without any, all minutes do."""
    return not stretches or any(one.has(weekday, minute) for one in stretches)


def _minutes(text: str) -> int:
    hours, minutes = int(text[:2]), int(text[3:])
    if minutes > 59 or hours * 60 + minutes > DAY_MINUTES:
        raise ValueError(f"{text} is no time of the day")
    return hours * 60 + minutes


def _days(text: str | None) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(",") if text else ["Mon-Sun"]:
        first, *more = (DAYS.index(name) for name in part.split("-"))
        last = more[-1] if more else first
        days.update((first + step) % 7 for step in range((last - first) % 7 + 1))
    return frozenset(days)
