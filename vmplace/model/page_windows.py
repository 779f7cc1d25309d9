"""Add a window of a source to a guest's page statistics."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from vmplace.model.page_rates import ObservedRange, begun_touch_rates, gone_on
from vmplace.model.pages import (
    HEAT_WINDOWS,
    HISTORY_WINDOWS,
    SAMPLED_WINDOWS,
    SAMPLES_KEPT,
    TEXT_WINDOWS,
    GuestPages,
    RangePages,
    SeenWindow,
)
from vmplace.sampling.block_rows import BlockRows, rows_of_bits, rows_of_pages
from vmplace.sampling.frame_nodes import UNKNOWN
from vmplace.sampling.page_arrays import Bits, Bytes
from vmplace.sampling.sample import NodeHits, RangeSample, SampleBatch
from vmplace.topology.guest import RamRange

T = TypeVar("T")


def absorbed(before: GuestPages | None, batch: SampleBatch) -> GuestPages:
    """Return the statistics after ``batch``, whose arrays may be kept and must not change.

    A range that appeared, grew or shrank since ``before`` starts cold: its pages are other pages.  So do all
    where a node came or went: its number is another one's.
    """
    if before and before.nids != batch.nids:
        before = None
    known = {(p.ram.hva, p.ram.npages): p for p in before.ranges} if before else {}
    sampled = batch.coverage.sampled
    ranges = [_absorbed_range(known.get((s.ram.hva, s.ram.npages)), s, sampled) for s in batch.ranges]
    reported = _with_rates(ranges, batch)
    lengths_s = (batch.ended_ns - batch.started_ns) / 1e9, *(before.lengths_s if before else ())
    windows = (before.windows if before else 0) + 1
    return GuestPages(batch.guest, batch.nids, windows, reported, lengths_s[:SAMPLED_WINDOWS])


def _with_rates(ranges: Sequence[RangePages], batch: SampleBatch) -> tuple[RangePages, ...]:
    """Return the ranges with the rates after the window, for those whose bits were read early."""
    watched = {
        one.ram.hva: ObservedRange(
            one.ram, one.rate or begun_touch_rates(one.ram, len(batch.nids)), sample.by_node
        )
        for one, sample in zip(ranges, batch.ranges, strict=True)
        if sample.by_node and sample.by_node.early
    }
    window_ns = batch.ended_ns - batch.started_ns
    rates = gone_on(tuple(watched.values()), window_ns, remembered=HISTORY_WINDOWS)
    after = dict(zip(watched, rates, strict=True))
    return tuple(replace(one, rate=after.get(one.ram.hva, one.rate)) for one in ranges)


def _absorbed_range(before: RangePages | None, sample: RangeSample, sampled: bool) -> RangePages:
    places, newest = places_of(sample), seen_window(sample)
    if before is None:
        before = RangePages(sample.ram, places, sample.huge)
    history = min(before.history + 1, HISTORY_WINDOWS) if sample.by_node else 0
    older = (one if at < history - 1 else one.by_anybody(before.blocks) for at, one in enumerate(before.seen))
    return RangePages(
        sample.ram,
        places,
        sample.huge,
        (newest, *older)[:HEAT_WINDOWS],
        history,
        sampled,
        _kept_samples(_with_newest(sample.counted, before.counted, SAMPLED_WINDOWS), sampled=sampled),
        _with_newest(sample.text, before.text, TEXT_WINDOWS),
        before.rate,
    )


def places_of(sample: RangeSample) -> BlockRows:
    """Return what is kept of where the pages are."""
    if sample.nodes is not None:
        return sample.nodes
    return BlockRows.of(rows_of_pages(sample.node_index, sample.ram, UNKNOWN))


def seen_window(sample: RangeSample) -> SeenWindow:
    """Return what is kept of a window: who touched, and whether anybody wrote.

    What was read early is in the rate.
    """
    if sample.by_node is None:
        return SeenWindow(_kept(_packed(sample.accessed), sample.ram))
    accessed, written = sample.by_node.accessed, sample.by_node.written
    if written is None:
        return SeenWindow(_kept(accessed, sample.ram))
    anybody = np.bitwise_or.reduce(written, axis=0, keepdims=True)
    return SeenWindow(_kept(accessed, sample.ram), _kept(anybody, sample.ram))


def _kept(planes: Bits, ram: RamRange) -> BlockRows:
    return BlockRows.of(rows_of_bits(planes, ram))


def _packed(touched: Bytes) -> Bits:
    """Return a bit for each byte that is not 0, one plane of words."""
    bits = np.zeros((1, -(-len(touched) // 64)), np.uint64)
    packed = np.packbits(touched, bitorder="little")
    bits.view(np.uint8)[0, : len(packed)] = packed
    return bits


def _kept_samples(windows: tuple[NodeHits, ...], *, sampled: bool) -> tuple[NodeHits, ...]:
    """Return the windows whose samples are kept, the newest first: beside bits as many as of these."""
    if not sampled or len(windows) <= HISTORY_WINDOWS:
        return windows[:HISTORY_WINDOWS]
    samples = np.cumsum([len(one.pages) for one in windows])
    return windows[: max(int(np.count_nonzero(samples <= SAMPLES_KEPT)), HISTORY_WINDOWS)]


def _with_newest(newest: T | None, before: tuple[T, ...], most: int) -> tuple[T, ...]:
    return () if newest is None else (newest, *before)[:most]
