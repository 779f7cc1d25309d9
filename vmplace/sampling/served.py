"""What served sampled loads and stores: which cache, or which node's memory, and how long did that take?

Source: union perf_mem_data_src, field mem_lvl (linux/perf_event.h, 6.12); arch/x86/events/amd/ibs.c (6.12),
perf_ibs_get_mem_lvl(): of a store that misses the L2 nothing further is known.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

_LEVEL_SHIFT = np.uint64(5)
_HIT = 0x02


class Served(IntEnum):
    """What an access was served by; UNKNOWN also stands for devices."""

    L1 = 0
    CACHE = 1
    LOCAL = 2
    REMOTE = 3
    UNKNOWN = 4


_LEVELS = {
    Served.L1: 0x08,
    # Line fill buffer, L2, L3, other CPUs' caches.
    Served.CACHE: 0x10 | 0x20 | 0x40 | 0x400 | 0x800,
    Served.LOCAL: 0x80,
    Served.REMOTE: 0x100 | 0x200,
}
_Sums = tuple[int, ...]
"""An entry for each of Served."""


@dataclass(frozen=True)
class ServedAccesses:
    """Accesses of a guest's vCPUs in one window or several, as samples of them imply.

    ``samples`` were taken, each of which stands for as many ``accesses`` as there are ops between two.
    ``waited``: cycles until the data was there; the hardware tells them of loads that miss the L1.
    """

    window_ns: int
    samples: _Sums
    accesses: _Sums
    waited: _Sums

    def __add__(self, other: "ServedAccesses") -> "ServedAccesses":
        """Return both windows as one."""
        return ServedAccesses(
            self.window_ns + other.window_ns,
            _sum(self.samples, other.samples),
            _sum(self.accesses, other.accesses),
            _sum(self.waited, other.waited),
        )


def served_by(data_srcs: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return for each union perf_mem_data_src which of ``Served`` it tells."""
    levels = data_srcs >> _LEVEL_SHIFT
    is_hit = (levels & np.uint64(_HIT)) != 0
    reported = [is_hit & ((levels & np.uint64(bits)) != 0) for bits in _LEVELS.values()]
    return np.select(reported, [int(kind) for kind in _LEVELS], int(Served.UNKNOWN))


class ServedTally:
    """Adds up the samples of some threads."""

    def __init__(self, tids: tuple[int, ...]) -> None:
        self._tids = np.array(tids, np.uint64)
        self._samples = np.zeros(len(Served), np.int64)
        self._waited = np.zeros(len(Served), np.int64)

    def add(
        self,
        served: npt.NDArray[np.int64],
        latencies: npt.NDArray[np.uint64],
        tids: npt.NDArray[np.uint64],
    ) -> None:
        """Count those samples that are of the threads."""
        own = np.isin(tids, self._tids)
        self._samples += np.bincount(served[own], minlength=len(Served))
        np.add.at(self._waited, served[own], latencies[own].astype(np.int64))

    def total(self, period: int, window_ns: int) -> ServedAccesses:
        """Return what a window implies in which one op in ``period`` was sampled."""
        of_each, waited = self._samples * period, self._waited * period
        return ServedAccesses(
            window_ns, tuple(self._samples.tolist()), tuple(of_each.tolist()), tuple(waited.tolist())
        )


def _sum(one: _Sums, other: _Sums) -> _Sums:
    return tuple(a + b for a, b in zip(one, other, strict=True))
