"""Rings of perf records as perf_event_open(2) lays them out, written by struct alone."""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PAGE = 4096
LOST, THROTTLE, SAMPLE, LOST_SAMPLES, MMAP = 2, 5, 9, 13, 1
HEAD_AT, TAIL_AT = 1024, 1032


@dataclass(frozen=True)
class Sample:
    phys_addr: int
    weight: int = 0
    data_src: int = 0
    tid: int = 1
    cpu: int = 0
    addr: int = 0


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("<IHH", kind, 0, 8 + len(body)) + body


def sample_record(sample: Sample) -> bytes:
    body = struct.pack(
        "<IIQIIQQQ",
        *(sample.tid, sample.tid, sample.addr, sample.cpu, 0),
        *(sample.weight, sample.data_src, sample.phys_addr),
    )
    return record(SAMPLE, body)


def ring_of(records: bytes, *, data_bytes: int = PAGE, at: int = 0) -> npt.NDArray[np.uint8]:
    """Return a ring that holds the records from position ``at``, which counts on and on."""
    ring = np.zeros(PAGE + data_bytes, np.uint8)
    for offset, byte in enumerate(records):
        ring[PAGE + (at + offset) % data_bytes] = byte
    counters = ring.view(np.uint64)
    counters[HEAD_AT // 8], counters[TAIL_AT // 8] = at + len(records), at
    return ring


def tail_of(ring: npt.NDArray[np.uint8]) -> int:
    return int(ring.view(np.uint64)[TAIL_AT // 8])


def backward_ring_of(records: list[bytes], *, data_bytes: int = PAGE) -> npt.NDArray[np.uint8]:
    """Return a ring that the records were written to in turn, from its end to its front, over the oldest."""
    ring, head = np.zeros(PAGE + data_bytes, np.uint8), 1 << 64
    for written in records:
        head -= len(written)
        for offset, byte in enumerate(written):
            ring[PAGE + (head + offset) % data_bytes] = byte
    ring.view(np.uint64)[HEAD_AT // 8] = head % (1 << 64)
    return ring
