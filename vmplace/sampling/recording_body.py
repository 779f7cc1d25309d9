"""How do the arrays of a batch lie in the body of its frame?  docs/recording.md tells it array by array.

``arrays_of`` gives them in the order in which ``batch_of`` takes them.
"""

import zlib
from typing import Any

import numpy as np

from vmplace.sampling.page_arrays import Bits, Indexes
from vmplace.sampling.page_frames import block_count
from vmplace.sampling.recording_frames import (
    BatchFrame,
    RangeArrays,
    bitmap_bytes,
    frame_body_bytes,
    range_bytes,
)
from vmplace.sampling.sample import EarlyBits, NodeBits, NodeHits, RangeSample, SampleBatch
from vmplace.topology.guest import RamRange


class DamagedError(Exception):
    """What is wrong with one frame."""


def arrays_of(sample: RangeSample) -> tuple[Any, ...]:
    """Return what is kept of a range, in the order in which ``_range_of`` reads it."""
    arrays: list[Any] = [sample.accessed, sample.node_index, sample.huge]
    if bits := sample.by_node:
        arrays += [bits.accessed, *([] if bits.written is None else [bits.written])]
        arrays += [one.accessed for one in bits.early]
    if sample.counted is not None:
        arrays += [sample.counted.pages.astype(np.int64), sample.counted.rows.astype(np.int64)]
    if sample.text is not None:
        arrays += [sample.text.astype(np.int64)]
    return tuple(np.ascontiguousarray(one).reshape(-1) for one in arrays)


def batch_of(frame: BatchFrame, body: bytes) -> SampleBatch:
    """Return the batch whose head and body these are; raises DamagedError, zlib.error."""
    wanted = frame_body_bytes(frame)
    # One byte more than wanted shows a body that is too long without unpacking all of it.
    raw = zlib.decompressobj().decompress(body, wanted + 1)
    if len(raw) != wanted:
        raise DamagedError(f"a batch whose arrays do not hold the {wanted} bytes its ranges need")
    ranges, at = [], 0
    for ram, arrays in zip(frame.ranges, frame.arrays, strict=True):
        ranges.append(_range_of(ram, arrays, _Body(raw, at), len(frame.nids)))
        at += range_bytes(ram, arrays)
    return SampleBatch(
        frame.guest, frame.source, frame.coverage, frame.started_ns, frame.ended_ns, frame.nids, tuple(ranges)
    )


class _Body:
    """Takes arrays off a batch's body, one after the other."""

    def __init__(self, raw: bytes, at: int) -> None:
        self._raw, self._at = raw, at

    def take(self, dtype: Any, count: int) -> Any:
        """Return the next ``count`` values."""
        # Arrays of words need not begin at a whole word.
        size = np.dtype(dtype).itemsize * count
        found = np.frombuffer(self._raw[self._at : self._at + size], dtype)
        self._at += size
        return found


def _range_of(ram: RamRange, arrays: RangeArrays, body: _Body, nodes: int) -> RangeSample:
    accessed = body.take(np.uint8, ram.npages)
    node_index = body.take(np.int8, ram.npages)
    huge = body.take(np.uint8, block_count(ram))
    if max(accessed.max(), huge.max()) > 1 or not -1 <= node_index.min() <= node_index.max() < nodes:
        raise DamagedError("a batch with pages on nodes that it does not tell, or touched by no 0 and no 1")
    by_node = _bits_of(ram, arrays, body) if arrays.node_rows else None
    counted = None
    if arrays.counted is not None:
        counted = NodeHits(_pages_of(ram, body, arrays.counted), _rows_of(body, arrays.counted, nodes))
    text = None if arrays.text is None else _pages_of(ram, body, arrays.text)
    return RangeSample(ram, accessed, node_index, huge, by_node, counted=counted, text=text)


def _bits_of(ram: RamRange, arrays: RangeArrays, body: _Body) -> NodeBits:
    def rows(count: int) -> Bits:
        bits: Bits = body.take(np.uint64, count * bitmap_bytes(ram) // 8).reshape(count, -1)
        if ram.npages % 64 and (bits[:, -1] >> np.uint64(ram.npages % 64)).any():
            raise DamagedError("a batch with touches of pages that its range does not have")
        return bits

    accessed = rows(arrays.node_rows)
    written = rows(arrays.written_rows) if arrays.written_rows else None
    return NodeBits(
        accessed, written, tuple(EarlyBits(after_ns, rows(arrays.node_rows)) for after_ns in arrays.early_ns)
    )


def _pages_of(ram: RamRange, body: _Body, count: int) -> Indexes:
    pages: Indexes = body.take(np.int64, count)
    if count and not 0 <= pages.min() <= pages.max() < ram.npages:
        raise DamagedError("a batch with samples of pages that its range does not have")
    return pages


def _rows_of(body: _Body, count: int, nodes: int) -> Indexes:
    rows: Indexes = body.take(np.int64, count)
    if count and not 0 <= rows.min() <= rows.max() <= nodes:
        raise DamagedError("a batch with samples of nodes that it does not tell")
    return rows
