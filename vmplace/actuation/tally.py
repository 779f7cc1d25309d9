"""Count what became of one guest's pages."""

import errno
from collections import Counter

import numpy as np
import numpy.typing as npt

from vmplace.actuation.result import MoveOutcome

_GONE = (errno.ENOENT, errno.EFAULT)
_BUSY = (errno.EBUSY, errno.EAGAIN)


def errno_name(number: int) -> str:
    """Return a name like "EACCES"."""
    return errno.errorcode.get(number, f"errno {number}")


class Tally:
    """The counts of a MoveOutcome while it grows; all in 4 KiB pages."""

    def __init__(self, guest: str, planned_pages: int) -> None:
        self.guest = guest
        self._planned_pages = planned_pages
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.calls = 0
        self.longest_call_ns = 0
        self.longest_call_cpu_ns = 0

    def called(self, duration_ns: int, cpu_ns: int) -> None:
        """Count one call."""
        self.calls += 1
        self.longest_call_ns = max(self.longest_call_ns, duration_ns)
        self.longest_call_cpu_ns = max(self.longest_call_cpu_ns, cpu_ns)

    def add(self, kind: str, npages: npt.NDArray[np.uint16] | int) -> None:
        """Count pages under one of MoveOutcome's names."""
        self.counts[kind] += int(np.sum(npages, dtype=np.int64))

    def add_refused(self, reason: str, npages: npt.NDArray[np.uint16]) -> None:
        """Count pages that were refused for ``reason``."""
        if total := int(npages.sum(dtype=np.int64)):
            self.refused[reason] += total

    def add_errors(self, status: npt.NDArray[np.int32], npages: npt.NDArray[np.uint16]) -> None:
        """Count pages by their -errno; statuses that are none are passed over."""
        for value in np.unique(status[(status < 0) & (status > -4096)]).tolist():
            pages = npages[status == value]
            if -value in _GONE:
                self.add("gone", pages)
            elif -value in _BUSY:
                self.add("busy", pages)
            else:
                self.add_refused(errno_name(-value), pages)

    @property
    def rest(self) -> int:
        """Return how many planned pages are not accounted for yet."""
        return self._planned_pages - self.counts.total() - self.refused.total()

    def outcome(self) -> MoveOutcome:
        """Return the counts as the result's entry."""
        return MoveOutcome(
            self.guest,
            **self.counts,
            refused=dict(self.refused),
            calls=self.calls,
            longest_call_ns=self.longest_call_ns,
            longest_call_cpu_ns=self.longest_call_cpu_ns,
        )
