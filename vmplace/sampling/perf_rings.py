"""One sampling event on each CPU, and the ring each writes to.

The C core takes the samples out (``native.perf_drain``); no perf process is involved.
"""

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.errors import UnsupportedHostError
from vmplace.topology.guest import PAGE_BYTES

# linux/perf_event.h: _IO('$', 0), _IO('$', 1), _IOW('$', 4, __u64), _IO('$', 5)
ENABLE, DISABLE, PERIOD, SET_OUTPUT = 0x2400, 0x2401, 0x40082404, 0x2405
SOFTWARE, DUMMY = 1, 9
RING_PAGES = 16
"""64 KiB a CPU: 1,170 samples, five seconds of the high rate at one op a nanosecond and 1/50 busy."""
ROOM = 4096


@dataclass(frozen=True)
class PerfSamples:
    """Samples, an entry each.

    ``phys_addrs``: 0 = none.  ``latencies`` in cycles, 0 = none.  ``data_srcs``: union perf_mem_data_src.
    ``lost`` had no place in a ring; ``throttled``: so often the kernel held an event back.
    """

    phys_addrs: npt.NDArray[np.uint64]
    latencies: npt.NDArray[np.uint64]
    data_srcs: npt.NDArray[np.uint64]
    tids: npt.NDArray[np.uint64]
    cpus: npt.NDArray[np.uint64]
    lost: int
    throttled: int


class PerfRings:
    """The events of one PMU; made disabled, one for each CPU."""

    def __init__(self, pmu_type: int, config: int, period: int, cpus: Iterable[int]) -> None:
        """Raise UnsupportedHostError where the kernel refuses."""
        self._rings: dict[int, mmap.mmap] = {}
        self._table = np.zeros((5, ROOM), np.uint64)
        try:
            for cpu in cpus:
                self._add(pmu_type, config, period, cpu)
        except OSError as err:
            self.close()
            raise _unsupported(err) from err

    def control(self, request: int, argument: bytes | int = 0) -> None:
        """Send ENABLE or DISABLE to all events."""
        for fd in self._rings:
            fcntl.ioctl(fd, request, argument)

    def set_period(self, period: int) -> None:
        """Sample every ``period`` ops from now on."""
        self.control(PERIOD, struct.pack("=Q", period))

    def drain(self) -> list[PerfSamples]:
        """Return what was sampled since the last time, in parts: one or more of each CPU."""
        return [part for ring in self._rings.values() for part in self._iter_parts(ring)]

    def close(self) -> None:
        """Take the events off; harmless when done twice."""
        for fd, ring in self._rings.items():
            ring.close()
            with suppress(OSError):
                os.close(fd)
        self._rings.clear()

    def _add(self, pmu_type: int, config: int, period: int, cpu: int) -> None:
        # What is mapped outlives the descriptors of a killed agent that cannot end (step_thread.py).  So the
        # ring is that of an event that never counts: the samples stop with the descriptor of the other one.
        mapped = native.perf_open(SOFTWARE, DUMMY, 0, cpu)
        try:
            ring = mmap.mmap(mapped, (1 + RING_PAGES) * PAGE_BYTES)
            fd = native.perf_open(pmu_type, config, period, cpu)
            self._rings[fd] = ring
            fcntl.ioctl(fd, SET_OUTPUT, mapped)
        finally:
            os.close(mapped)

    def _iter_parts(self, ring: mmap.mmap) -> Iterator[PerfSamples]:
        count = ROOM
        while count == ROOM:
            count, lost, throttled = native.perf_drain(ring, self._table)
            phys_addrs, latencies, data_srcs, tids, cpus = self._table[:, :count].copy()
            yield PerfSamples(phys_addrs, latencies, data_srcs, tids, cpus, lost, throttled)


def _unsupported(err: OSError) -> UnsupportedHostError:
    if err.errno in (errno.EACCES, errno.EPERM):
        return UnsupportedHostError("perf events of all processes are not permitted", hint="run as root")
    if err.errno == errno.EBUSY:
        return UnsupportedHostError(
            "another program samples with this PMU", hint="end it: perf record, or another profiler"
        )
    return UnsupportedHostError(f"the kernel refuses the event: {err.strerror}", hint="see dmesg")
