"""What do a guest's vCPUs do: cycles, instructions, DRAM accesses?  Perf events count their threads.

1. One event of each kind counts each thread.  What the CPU cannot count is absent, which is no error.
2. A guest has MOST_EVENTS at the most (counting.py).  Of one with more vCPUs some are counted, at equal
   distances, and each stands for as many as it is one of: right where vCPUs do much the same.
3. There are fewer counters than events, so the kernel takes turns: a count is scaled by the time it was
   wanted over the time it ran.  A thread that had no turn is taken to do as the others, if these ran for
   most of the time.

Source: perf_event_open(2).
"""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from vmplace import counting
from vmplace.counting import MOST_EVENTS
from vmplace.errors import UnsupportedHostError

ABSENT = (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV)
"""What the kernel says of an event that this CPU does not have."""
ENDED = errno.ESRCH


@dataclass(frozen=True)
class Count:
    """An event's count, and for how many ns it was wanted and counted."""

    value: int
    enabled_ns: int
    running_ns: int

    def since(self, earlier: "Count") -> "Count":
        """Return the growth."""
        return Count(
            self.value - earlier.value,
            self.enabled_ns - earlier.enabled_ns,
            self.running_ns - earlier.running_ns,
        )

    @property
    def scaled(self) -> float:
        """Return what it would be had it counted all the time; 0 if it never did."""
        return self.value * self.enabled_ns / self.running_ns if self.running_ns else 0.0


class PerfCounters:
    """Events on a guest's vCPU threads; ``counts`` tells what they did since the last call."""

    def __init__(self, tids: Iterable[int], events: Mapping[str, tuple[int, int]], pid: int = 0) -> None:
        """Open the events, or none; raises UnsupportedHostError where perf is not permitted, else OSError.

        ``pid``: the process of the threads, which may hold that up (HeldError).  A thread that has ended, and
        an event that the CPU lacks, are left out.
        """
        self._pid, self._key = pid, next(counting.KEYS)
        self._names = tuple(events)
        threads = tuple(tids)
        self._some = some = spread(threads, max(MOST_EVENTS // max(len(events), 1), 1))
        self._threads_of_one = len(threads) / max(len(some), 1)
        self._events = [(*event, tid) for tid in some for event in events.values()]
        _, counted = counting.count(pid, self._key, self._events)
        errors = {error for error, *_ in counted}.difference(ABSENT, {0, ENDED})
        if errors:
            self.close()
            if errors & {errno.EACCES, errno.EPERM}:
                raise UnsupportedHostError("perf events are not permitted", hint="run as root")
            raise OSError(error := max(errors), os.strerror(error))
        self._counted = [error == 0 for error, *_ in counted]
        self._last = [Count(0, 0, 0)] * len(counted)
        self._grown: dict[str, dict[int, Count]] = {}

    def counts(self) -> dict[str, float | None]:
        """Return each event's growth since the last call, all threads together, scaled.

        None of all where another process counts since: the one before ended, or was left behind.
        Raises HeldError.
        """
        is_new, counted = counting.count(self._pid, self._key, self._events)
        now = [Count(*count) for _, *count in counted]
        before, self._last = self._last, now
        self._grown = {name: {} for name in self._names}
        if is_new:
            self._counted = [error == 0 for error, *_ in counted]
            return dict.fromkeys(self._grown)
        each = zip(product(range(len(self._some)), self._names), self._counted, now, before, strict=True)
        for (number, name), is_counted, count, earlier in each:
            if is_counted:
                self._grown[name][number] = count.since(earlier)
        return {
            name: _sum(list(growths.values()), self._threads_of_one) for name, growths in self._grown.items()
        }

    def counted_of(self, names: Iterable[str], tids: Sequence[int]) -> float | None:
        """Return the growth that the last ``counts`` saw of some threads, of these events together.

        None where one of them was not counted, or of none of the threads.
        """
        mine = [number for number, tid in enumerate(self._some) if tid in tids]
        total = 0.0
        for name in names:
            grown = [self._grown[name][number] for number in mine if number in self._grown.get(name, {})]
            count = _sum(grown, len(tids) / len(grown)) if grown else None
            if count is None:
                return None
            total += count
        return total

    def close(self) -> None:
        """Take the events off; harmless when done twice."""
        counting.drop(self._pid, self._key)


def _sum(growths: Sequence[Count], each_stands_for: float) -> float | None:
    """Return the count of all threads; None if those that were counted ran for half of the time at most."""
    # A thread that slept all the time was not wanted to be counted: it did nothing.
    wanted_ns = sum(one.enabled_ns for one in growths)
    counted_ns = sum(one.enabled_ns for one in growths if one.running_ns)
    if not growths or (wanted_ns and 2 * counted_ns <= wanted_ns):
        return None
    missing = wanted_ns / counted_ns if counted_ns else 1.0
    return sum(one.scaled for one in growths) * missing * each_stands_for


def spread(threads: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most so many of the threads, at equal distances."""
    count = min(len(threads), most)
    return tuple(threads[one * len(threads) // count] for one in range(count))
