"""Add a window of a source to a guest's page statistics."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from vmplace.model.page_rates import ObservedRange, begun_touch_rates, gone_on
from vmplace.model.pages import (
    HEAT_WINDOWS,
    HISTORY_WINDOWS,
    KEPT_A_BLOCK,
    SAMPLED_S,
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
from vmplace.sampling.sample import RangeSample, SampleBatch
from vmplace.topology.guest import RamRange

T = TypeVar("T")
NEVER = 255
"""So many windows, or more."""


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
    lengths_s = (batch.ended_ns - batch.started_ns) / 1e9, *(before.lengths_s if before else ())
    ended_ns = batch.ended_ns, *(before.ended_ns if before else ())
    kept = _kept_windows(ranges, ended_ns) if sampled else HISTORY_WINDOWS
    ranges = [replace(one, counted=one.counted[:kept]) for one in ranges]
    windows = (before.windows if before else 0) + 1
    reported, most = _with_rates(ranges, batch), SAMPLED_WINDOWS
    return GuestPages(batch.guest, batch.nids, windows, reported, lengths_s[:most], ended_ns[:most])


def _kept_windows(ranges: Sequence[RangePages], ended_ns: tuple[int, ...]) -> int:
    """Return of how many windows samples are kept: of all ranges alike, lest one seems to have begun late."""
    young = sum(one >= ended_ns[0] - SAMPLED_S * 1e9 for one in ended_ns[:SAMPLED_WINDOWS])
    most = max(SAMPLES_KEPT, KEPT_A_BLOCK * sum(one.blocks for one in ranges))
    samples = np.zeros(SAMPLED_WINDOWS + 1, np.int64)
    for one in ranges:
        samples[: len(one.counted)] += np.array([len(hits.pages) for hits in one.counted], np.int64)
    few = int(np.count_nonzero(np.cumsum(samples) <= most))
    return max(min(young, few), HISTORY_WINDOWS)


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
        _with_newest(sample.counted, before.counted, SAMPLED_WINDOWS),
        _with_newest(sample.text, before.text, TEXT_WINDOWS),
        before.rate,
        _stored(before, newest) if sampled else None,
    )


def _stored(before: RangePages, newest: SeenWindow) -> Bytes:
    """Return how many windows ago a store was sampled in each block; where nobody tells, none was."""
    ages = np.full(before.blocks, NEVER, np.uint8) if before.stored is None else before.stored
    wrote = newest.written.is_used if newest.written else np.zeros(before.blocks, np.bool_)
    return np.where(wrote, 0, np.minimum(ages, NEVER - 1) + 1).astype(np.uint8)


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


def _with_newest(newest: T | None, before: tuple[T, ...], most: int) -> tuple[T, ...]:
    return () if newest is None else (newest, *before)[:most]
