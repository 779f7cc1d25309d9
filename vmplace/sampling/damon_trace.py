"""What did DAMON find?  Read from its trace point, so that nobody waits for its thread.

1. The trace point damon:damon_aggregated tells of each region as an aggregation ends.  A perf event on one
   kdamond writes that to a ring, over what is oldest (native.perf_trace).
2. A copy of the ring is taken apart, the newest record first.  Regions are reported by ascending addresses,
   each with how many there are.  An aggregation of which some are missing is left out.

Source: include/trace/events/damon.h, mm/damon/core.c (kdamond_reset_aggregated), perf_event_open(2).  The
trace point's file "format" says where its fields lie.

Limits: a kdamond has one target, whose regions fit in the ring.
"""

import errno
import mmap
import os
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vmplace import held, native
from vmplace.errors import OutsideError, UnsupportedHostError, VmplaceError
from vmplace.outside import read_text, within
from vmplace.sampling.page_arrays import Bytes
from vmplace.topology.damon import TRACE_POINT, TRACE_POINT_CURE
from vmplace.topology.guest import PAGE_BYTES

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.uint8]
RING_BYTES = 1 << 17
"""1,820 records of 72 bytes: an aggregation of 1,000 regions, and most of one that is being written."""
HEAD, TIME_AT, RAW_AT = 8, 8, 20
"""A record: a head, the time, the size of what the trace point tells (u32), and that."""
SAMPLE = 9
"""linux/perf_event.h: PERF_RECORD_SAMPLE."""
FIELD = re.compile(r"^\tfield:[^;]*?(\w{1,32});\toffset:(\d{1,4});\tsize:([48]);", re.MULTILINE)
NEEDED = ("nr_regions", "start", "end", "nr_accesses")


@dataclass(frozen=True)
class Aggregation:
    """Regions ``[starts[i], ends[i])`` that were touched; ``ended_ns``: when (CLOCK_MONOTONIC)."""

    ended_ns: int
    starts: Words
    ends: Words


@dataclass(frozen=True)
class TraceLayout:
    """The number of the trace point, and where in a record its fields lie: offset and bytes."""

    event: int
    fields: dict[str, tuple[int, int]]

    def newest(self, records: Bytes) -> Aggregation | None:
        """Return the newest whole aggregation; the records are sorted, the newest first."""
        rows = _rows(records, least=max(sum(field) for field in self.fields.values()))
        if not len(rows):
            return None
        starts, counts = self._column(rows, "start"), self._column(rows, "nr_regions")
        # The newest one may not be written in full yet: then it is the one before it.
        firsts = [0, *(np.flatnonzero(starts[1:] >= starts[:-1]) + 1).tolist(), len(rows)]
        for first, end in pairwise(firsts[:3]):
            if end - first == counts[first]:
                return self._aggregation(rows[first:end])
        return None

    def _aggregation(self, rows: Rows) -> Aggregation:
        touched = rows[self._column(rows, "nr_accesses") > 0]
        ended_ns = int(_numbers(rows[:1], TIME_AT, 8)[0])
        return Aggregation(ended_ns, self._column(touched, "start"), self._column(touched, "end"))

    def _column(self, rows: Rows, name: str) -> Words:
        return _numbers(rows, *self.fields[name])


class RegionTrace:
    """What one kdamond tells; opened as it begins, and read at any time."""

    def __init__(self, layout: TraceLayout, guest_pid: int, kdamond_pid: int) -> None:
        """Raise VmplaceError where the kernel refuses, HeldError."""
        self._layout = layout
        try:
            # By the time that it is opened, the kdamond may have ended, and a process have its pid.
            self._fd = held.opened(guest_pid, lambda: native.perf_trace(layout.event, kdamond_pid))
        except OSError as err:
            raise VmplaceError(
                f"DAMON's trace point cannot be read: {err.strerror}",
                hint="run the agent as root, or with CAP_PERFMON",
            ) from err
        try:
            self._ring = mmap.mmap(self._fd, PAGE_BYTES + RING_BYTES, prot=mmap.PROT_READ)
        except OSError as err:
            os.close(self._fd)
            raise _unmapped(err) from err

    def newest(self) -> Aggregation | None:
        """Return the newest aggregation that was reported in full; waits for nobody."""
        content = np.empty(RING_BYTES, np.uint8)
        return self._layout.newest(content[: native.perf_newest(self._ring, content)])

    def close(self) -> None:
        """Read no more."""
        self._ring.close()
        os.close(self._fd)


def read_trace_layout(sysfs: Path) -> TraceLayout:
    """Return how the kernel tells of regions; raises UnsupportedHostError with the cure."""
    path = sysfs / TRACE_POINT
    try:
        return parse_trace_layout(read_text(path))
    except OSError as err:
        raise UnsupportedHostError(
            f"DAMON's trace point cannot be read: {path}: {err.strerror}",
            hint=TRACE_POINT_CURE,
        ) from err
    except OutsideError as err:
        raise UnsupportedHostError(
            f"DAMON's trace point is not understood: {err}",
            hint="take another source in vmplace.toml, and report it with the kernel's version",
        ) from err


def parse_trace_layout(text: str) -> TraceLayout:
    """Parse the file "format" of the trace point; raises OutsideError."""
    numbered = re.search(r"^ID: (\d{1,9})$", text, re.MULTILINE)
    found = {name: (RAW_AT + int(offset), int(size)) for name, offset, size in FIELD.findall(text)}
    missing = [name for name in NEEDED if name not in found]
    if numbered is None or missing:
        raise OutsideError(f"it has no {missing[0] if missing else 'ID'}")
    for name in NEEDED:
        within(found[name][0], RAW_AT, PAGE_BYTES, name)
    return TraceLayout(int(numbered[1]), {name: found[name] for name in NEEDED})


def _rows(records: Bytes, least: int) -> Rows:
    """Return the first records that are all of one kind and size, a row each."""
    none = np.zeros((0, least), np.uint8)
    if len(records) < least:
        return none
    kind, size = int(records[:4].view(np.uint32)[0]), int(records[6:8].view(np.uint16)[0])
    if kind != SAMPLE or size < least:
        return none
    rows = records[: len(records) // size * size].reshape(-1, size)
    others = np.flatnonzero((rows[:, :HEAD] != rows[0, :HEAD]).any(axis=1))
    return rows[: others[0]] if len(others) else rows


def _numbers(rows: Rows, offset: int, size: int) -> Words:
    part = np.ascontiguousarray(rows[:, offset : offset + size])
    return part.view(np.uint32 if size == 4 else np.uint64)[:, 0].astype(np.uint64)


def _unmapped(err: OSError) -> VmplaceError:
    if err.errno in (errno.EPERM, errno.ENOMEM):
        return VmplaceError("there is no memory for DAMON's ring", hint="raise LimitMEMLOCK of the agent")
    return VmplaceError(f"DAMON's ring cannot be read: {err.strerror}", hint="`journalctl -k` may tell why")
