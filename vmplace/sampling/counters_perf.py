"""How well do a guest's vCPUs run: instructions, stalls, DRAM reads?  Perf events count their threads.

1. One event of each kind counts each thread.  What the CPU cannot count is absent, which is no error.
2. There are fewer counters than events, so the kernel takes turns: a count is scaled by the time it was
   wanted over the time it ran.
3. With resctrl the memory bandwidth of a guest's group is read, too (``resctrl_bandwidth``).

Source: perf_event_open(2); Documentation/arch/x86/resctrl.rst (6.12).
"""

import errno
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vmplace import held, native
from vmplace.errors import UnsupportedHostError
from vmplace.held import HeldError
from vmplace.outside import read_whole

# linux/perf_event.h: enum perf_type_id, perf_hw_id, perf_hw_cache_id, perf_hw_cache_op_result_id
HARDWARE, HW_CACHE = 0, 3
NODE_READS, NODE_READ_MISSES = 6, 6 | 1 << 16
EVENTS: Mapping[str, tuple[int, int]] = {
    "cycles": (HARDWARE, 0),
    "instructions": (HARDWARE, 1),
    "stalled_cycles": (HARDWARE, 8),
    "dram_reads": (HW_CACHE, NODE_READS),
    "remote_dram_reads": (HW_CACHE, NODE_READ_MISSES),
}
ABSENT = (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV)
"""What the kernel says of an event that this CPU does not have."""
COUNT = struct.Struct("=QQQ")


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
    def scaled(self) -> float | None:
        """Return what it would be had it counted all the time; None if it never did."""
        return self.value * self.enabled_ns / self.running_ns if self.running_ns else None


@dataclass(frozen=True)
class CpuUse:
    """What threads did in a window; None: not countable here, or no counter was free.

    ``stalled_cycles`` waited for memory or another unit of the back end; ``dram_reads`` are reads that a
    node's memory served, ``remote_dram_reads`` those of another node than the CPU's.
    """

    cycles: float | None
    instructions: float | None
    stalled_cycles: float | None
    dram_reads: float | None
    remote_dram_reads: float | None

    @property
    def ipc(self) -> float | None:
        """Return instructions per cycle."""
        return _ratio(self.instructions, self.cycles)

    @property
    def stall_ratio(self) -> float | None:
        """Return the share of cycles that were stalled."""
        return _ratio(self.stalled_cycles, self.cycles)

    @property
    def local_access_ratio(self) -> float | None:
        """Return the share of DRAM reads that the CPU's own node served."""
        remote = _ratio(self.remote_dram_reads, self.dram_reads)
        return None if remote is None else 1 - remote


class PerfCounters:
    """Events on a guest's vCPU threads; ``window`` tells what they did since the last one."""

    def __init__(
        self, tids: Iterable[int], events: Mapping[str, tuple[int, int]] = EVENTS, pid: int = 0
    ) -> None:
        """Open the events, or none; raises UnsupportedHostError where perf is not permitted, else OSError.

        ``pid``: the process of the threads, which may hold that up (HeldError).  A thread that has ended, and
        an event that the CPU lacks, are left out.
        """
        self._pid = pid
        self._fds: dict[str, list[int]] = {name: [] for name in events}
        self._last: dict[int, Count] = {}
        try:
            for tid in tids:
                for name, (kind, config) in events.items():
                    self._add(name, kind, config, tid)
        except (OSError, HeldError) as err:
            self.close()
            if isinstance(err, PermissionError):
                raise UnsupportedHostError("perf events are not permitted", hint="run as root") from err
            raise

    def counts(self) -> dict[str, float | None]:
        """Return each event's growth since the last call, all threads together, scaled."""
        return {name: _sum(self._growth(fd) for fd in fds) for name, fds in self._fds.items()}

    def window(self) -> CpuUse:
        """Return what the threads did since the last call."""
        counts = self.counts()
        return CpuUse(**{name: counts.get(name) for name in EVENTS})

    def close(self) -> None:
        """Take the events off; harmless when done twice."""
        for fd in (fd for fds in self._fds.values() for fd in fds):
            with suppress(OSError):
                os.close(fd)
        self._fds = {name: [] for name in self._fds}

    def _add(self, name: str, kind: int, config: int, tid: int) -> None:
        try:
            fd = held.bounded(self._pid, lambda: native.perf_count(kind, config, tid), late=os.close)
        except ProcessLookupError:
            return
        except PermissionError:
            raise
        except OSError as err:
            if err.errno in ABSENT:
                return
            raise
        self._fds[name].append(fd)
        self._last[fd] = Count(0, 0, 0)

    def _growth(self, fd: int) -> float | None:
        now = Count(*COUNT.unpack(os.read(fd, COUNT.size)))
        growth, self._last[fd] = now.since(self._last[fd]), now
        # A thread that slept all the time was not wanted to be counted: it did nothing.
        return growth.scaled if growth.enabled_ns else 0.0


def resctrl_bandwidth(
    group: Path, earlier: Mapping[str, int], seconds: float
) -> tuple[dict[str, float], dict[str, int]]:
    """Return bytes a second by counter ("mon_L3_00/mbm_local_bytes") since ``earlier``, and the totals now.

    ``group`` is a control or monitoring group below /sys/fs/resctrl.  A counter that is not available
    ("Unavailable", "Unassigned") is absent; so are all where there is no resctrl.
    """
    now: dict[str, int] = {}
    for path in sorted(group.glob("mon_data/mon_L3_*/mbm_*_bytes")):
        with suppress(OSError, ValueError):
            now[f"{path.parent.name}/{path.name}"] = read_whole(path)
    return {name: (now[name] - earlier[name]) / seconds for name in now.keys() & earlier.keys()}, now


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
