"""How fast do samples come out of perf rings?  The C core beside Python's struct over the same ring."""

import struct
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from vmplace import native

PAGE, RING_BYTES = 4096, 1 << 20
HEAD_AT, TAIL_AT = 1024 // 8, 1032 // 8
RECORD_SAMPLE = 9
SAMPLE = struct.Struct("<IHHIIQIIQQQ")
"""Header, pid, tid, addr, cpu, reserved, weight, data_src, phys_addr (perf_event_open(2))."""
COLUMNS = 5
SECONDS = 2.0


def ring_of(records: int) -> npt.NDArray[np.uint8]:
    """Return a ring with so many samples."""
    ring = np.zeros(PAGE + RING_BYTES, np.uint8)
    for at in range(records):
        values = RECORD_SAMPLE, 0, SAMPLE.size, 1, at, 0, at % 64, 0, 100, 0x1042, at * PAGE
        SAMPLE.pack_into(ring.data, PAGE + at * SAMPLE.size, *values)
    ring.view(np.uint64)[HEAD_AT] = records * SAMPLE.size
    return ring


def by_core(ring: npt.NDArray[np.uint8], table: npt.NDArray[np.uint64]) -> int:
    """Drain the ring, as the source does."""
    ring.view(np.uint64)[TAIL_AT] = 0
    return native.perf_drain(ring, table)[0]


def by_struct(ring: npt.NDArray[np.uint8], table: npt.NDArray[np.uint64]) -> int:
    """Take the same columns out without the core."""
    head = int(ring.view(np.uint64)[HEAD_AT])
    records = list(SAMPLE.iter_unpack(ring[PAGE : PAGE + head].data))
    for at, (*_, tid, _, cpu, _, weight, data_src, phys_addr) in enumerate(records):
        table[:, at] = phys_addr, weight, data_src, tid, cpu
    return len(records)


def records_per_s(drain: Callable[[npt.NDArray[np.uint8], npt.NDArray[np.uint64]], int]) -> float:
    """Return how many records a second ``drain`` takes out, in CPU time."""
    records = RING_BYTES // SAMPLE.size - 1
    ring, table = ring_of(records), np.zeros((COLUMNS, records), np.uint64)
    done, started = 0, time.process_time()
    while (used := time.process_time() - started) < SECONDS:
        got = drain(ring, table)
        if got != records or table[0, 1] != PAGE:
            raise RuntimeError(f"{got} of {records} records came out")
        done += got
    return done / used
