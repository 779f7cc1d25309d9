"""For how long samples count, against programs that are declared to go on, or to change."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from vmplace.model.evidence import Entries, entries_of
from vmplace.model.heat_horizon import HORIZON_S
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import (
    HISTORY_WINDOWS,
    KEPT_A_BLOCK,
    SAMPLED_S,
    SAMPLED_WINDOWS,
    SAMPLES_KEPT,
    GuestPages,
)
from vmplace.model.remembered import LENGTHS, MOST, Memory, Samples, best_memory, memories_of
from vmplace.sampling.sample import NodeBits, NodeHits, RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import Movability, RamRange

BLOCK, BLOCKS, NODES = 512, 128, 4
RAM = RamRange(1 << 30, BLOCKS * BLOCK, None, 4096, Movability.MOVABLE, "")
SEED, RATE = 11, 0.3
Rates = np.ndarray


def window(
    rates: Rates,
    chance: np.random.Generator,
    *,
    sampled: bool = True,
    ended_ns: int = 10**9,
    ram: RamRange = RAM,
    writes: float = 0.0,
) -> SampleBatch:
    """Return a window of a second in which the nodes were sampled in blocks of 2 MiB at ``rates[B, N]``."""
    counts = chance.poisson(rates)
    block, row = (np.repeat(some.ravel(), counts.ravel()) for some in np.indices(counts.shape))
    pages = block * BLOCK + chance.integers(BLOCK, size=len(block))
    planes = np.zeros((NODES + 1, ram.npages), np.uint8)
    planes[row, pages] = 1
    wrote = planes * (chance.random(planes.shape) < writes)
    bits, stores = (np.packbits(one, axis=1, bitorder="little").view(np.uint64) for one in (planes, wrote))
    anybody, nothing = np.asarray(planes.any(axis=0), np.uint8), np.zeros(ram.npages, np.int8)
    huge, hits = np.ones(ram.npages // BLOCK, np.uint8), NodeHits(pages, row)
    sample = RangeSample(ram, anybody, nothing, huge, NodeBits(bits, stores), counted=hits)
    coverage = SourceCoverage(accessor_nid=True, written=True, sampled=sampled)
    return SampleBatch("db1", "ibs", coverage, ended_ns - 10**9, ended_ns, tuple(range(NODES)), (sample,))


def known(rates: Sequence[Rates], *, sampled: bool = True, every_s: float = 1.0) -> GuestPages:
    """Return a guest's statistics after windows at these rates."""
    chance, pages = np.random.default_rng(SEED), None
    for number, one in enumerate(rates, start=1):
        ended_ns = round(number * every_s * 1e9)
        pages = absorbed(pages, window(one, chance, sampled=sampled, ended_ns=ended_ns))
    assert pages
    return pages


def used(node: int, *blocks: int, rate: float = RATE) -> Rates:
    """Return the rates of some blocks, by default all, that one node uses."""
    rates = np.zeros((BLOCKS, NODES))
    rates[list(blocks) or slice(None), node] = rate
    return rates


def memory(pages: GuestPages) -> Memory:
    return memories_of(pages.ranges)[RAM.hva]


def evidence(pages: GuestPages) -> Entries:
    found = entries_of(pages, 1.0)
    assert found
    return found


@pytest.mark.parametrize("rate", [0.01, RATE], ids=["few samples", "more"])
def test_samples_of_a_program_that_goes_on_count_for_long(rate: float) -> None:
    assert memory(known([used(0, rate=rate)] * 80)).windows >= 32


def test_memory_that_is_plugged_in_makes_no_other_memory_hotter() -> None:
    chance, pages, plugged = np.random.default_rng(SEED), None, replace(RAM, hva=1 << 40)
    for number in range(1, 65):
        batch = window(used(0), chance, ended_ns=number * 10**9)
        if number > 60:
            more = window(used(1, rate=4 * RATE), chance, ram=plugged)
            batch = replace(batch, ranges=batch.ranges + more.ranges)
        pages = absorbed(pages, batch)
    assert pages and memory(pages).windows == LENGTHS[-1]
    by_node = evidence(pages).heat.sum(axis=0)
    assert by_node[0] == pytest.approx(HORIZON_S * BLOCKS * RATE, rel=0.1)
    assert by_node[1] == pytest.approx(HORIZON_S * BLOCKS * 4 * RATE, rel=0.15)


def test_what_is_learnt_from_many_windows_is_nearer_to_what_was_declared() -> None:
    """Half of the blocks are node 0's, half are shared alike."""
    rates = used(0, *range(64)) + used(0, *range(64, 128)) / 2 + used(1, *range(64, 128)) / 2
    pages = known([rates] * SAMPLED_WINDOWS)
    cut = (replace(one, counted=one.counted[:HISTORY_WINDOWS]) for one in pages.ranges)
    due, errors = rates[:, 0] / rates.sum(axis=1), []
    for guest in (pages, replace(pages, ranges=tuple(cut))):
        heat = evidence(guest).heat
        errors.append(float(np.abs(heat[:, 0] / np.maximum(heat.sum(axis=1), 1e-9) - due).mean()))
    assert errors[0] < 0.6 * errors[1]


def test_once_all_of_a_program_does_something_else_what_it_did_before_is_forgotten() -> None:
    before = used(0, *range(64))
    for after in (used(0, *range(64, 128)), used(1, *range(64))):
        assert memory(known([*[before] * 60, *[after] * 6])).windows == LENGTHS[0]


def test_of_a_part_that_changed_its_node_the_new_one_counts() -> None:
    """One block in 16; the others go on, each used by one node of four."""
    some, before = np.arange(3, BLOCKS, 16), np.zeros((BLOCKS, NODES))
    before[np.arange(BLOCKS), np.arange(BLOCKS) % 4] = RATE
    after = before.copy()
    after[some] = np.roll(before[some], 1, axis=1)
    pages = known([*[before] * 60, *[after] * 8])
    assert memory(pages).windows > LENGTHS[0]
    heat, others = evidence(pages).heat, np.delete(np.arange(BLOCKS), some)
    assert heat[some, some % 4 - 3].sum() > 0.6 * heat[some].sum()
    assert heat[others, others % 4].sum() > 0.95 * heat[others].sum()


def test_a_part_that_nobody_uses_any_more_is_cold() -> None:
    some, after = list(range(3, BLOCKS, 16)), used(0, rate=2.0)
    after[some] = 0.0
    heat = evidence(known([*[used(0, rate=2.0)] * 60, *[after] * 6])).heat.sum(axis=1)
    assert heat[some].mean() < 0.75 * np.delete(heat, some).mean()


def test_of_a_guest_that_was_not_sampled_lately_nothing_is_hot() -> None:
    idle = known([*[used(0)] * 60, *[np.zeros((BLOCKS, NODES))] * HISTORY_WINDOWS])
    assert memory(idle).windows == LENGTHS[0] and not evidence(idle).heat.any()


def test_half_of_the_windows_count_where_the_other_half_is_of_something_else() -> None:
    found = memory(known([*[used(0, *range(64))] * 30, *[used(0, *range(64, 128))] * 30])).windows
    assert HISTORY_WINDOWS < found <= 32


def test_many_samples_are_not_kept_for_long() -> None:
    """Of one block, as if all were alike."""
    dense = known([used(0, 0, rate=SAMPLES_KEPT / 10)] * 20)
    assert 8 <= len(dense.ranges[0].counted) <= 10
    denser = known([used(0, 0, rate=SAMPLES_KEPT / 2)] * 6)
    assert len(denser.ranges[0].counted) == HISTORY_WINDOWS
    assert KEPT_A_BLOCK * BLOCKS < SAMPLES_KEPT


def test_old_samples_are_not_kept() -> None:
    assert len(known([used(0)] * 40, every_s=SAMPLED_S / 20).ranges[0].counted) == 21
    assert len(known([used(0)] * 40, every_s=SAMPLED_S).ranges[0].counted) == HISTORY_WINDOWS


def test_so_many_windows_are_kept_beside_bits_as_of_these() -> None:
    assert len(known([used(0)] * 20, sampled=False).ranges[0].counted) == HISTORY_WINDOWS
    assert len(known([used(0)] * 80).ranges[0].counted) == SAMPLED_WINDOWS


def test_ranges_keep_as_many_windows_and_blocks_are_those_of_each() -> None:
    """The second range begins within a block, and has the block that changed."""
    other = replace(RAM, hva=(3 << 30) + BLOCK // 4 * 4096)
    usual, changed = used(0, rate=2.0), used(0, rate=2.0)
    usual[77], changed[77] = used(0, rate=12.0)[77], used(3, rate=12.0)[77]
    chance, pages = np.random.default_rng(SEED), None
    for at in range(40):
        first = window(used(0, rate=2.0), chance)
        second = window(changed if at > 33 else usual, chance, ram=other)
        pages = absorbed(pages, replace(first, ranges=(*first.ranges, *second.ranges)))
    assert pages
    found = memories_of(pages.ranges)
    assert found[RAM.hva].windows == found[other.hva].windows >= 16
    # Samples of block 77 are of pages from a quarter of it on.
    assert {77, 78} <= set(found[other.hva].changed) and not {77, 78} & set(found[RAM.hva].changed)


@pytest.mark.parametrize(
    ("writes", "since", "is_written"), [(0.5, 6, True), (0.0, 6, False), (0.5, 70, False)]
)
def test_a_store_counts_for_as_long_as_samples_do(writes: float, since: int, *, is_written: bool) -> None:
    """Half of the accesses to the first block wrote, until it was not used any more; others are only read."""
    chance, pages = np.random.default_rng(SEED), None
    first, others = used(0, 0, rate=8.0), used(0, *range(1, BLOCKS), rate=2.0)
    for at in range(100):
        one = window(others, chance)
        if at < 100 - since:
            both = window(first, chance, writes=writes)
            one = replace(one, ranges=(_joined(one.ranges[0], both.ranges[0]),))
        pages = absorbed(pages, one)
    assert pages
    found = evidence(pages)
    assert found.written[0] == is_written and not found.written[1:].any()


def _joined(one: RangeSample, other: RangeSample) -> RangeSample:
    """Return a window in which both were sampled."""
    assert one.by_node and other.by_node and one.counted and other.counted
    assert one.by_node.written is not None and other.by_node.written is not None
    accessed = one.by_node.accessed | other.by_node.accessed
    bits = NodeBits(accessed, one.by_node.written | other.by_node.written)
    anybody = np.maximum(one.accessed, other.accessed)
    return replace(one, accessed=anybody, by_node=bits, counted=NodeHits.joined([one.counted, other.counted]))


@pytest.mark.parametrize(("since", "found"), [(4, 0.6), (12, 0.75)])
def test_most_blocks_that_changed_are_found_and_hardly_any_other(since: int, found: float) -> None:
    """Of 512 blocks that one node each uses 26 changed, so many windows ago: three in ten a window."""
    chance, block = np.random.default_rng(SEED), np.arange(512)
    some = chance.permutation(512)[:26]
    windows = []
    for at in range(SAMPLED_WINDOWS):
        seen = np.repeat(block, chance.poisson(RATE, 512))
        node = seen % 4 + np.isin(seen, some) * (at < since)
        windows.append(Samples(seen, node, seen * 0 + at))
    changed = best_memory(Samples.joined(windows)).changed
    assert np.isin(some, changed).mean() > found
    assert np.isin(changed, some, invert=True).sum() < 0.03 * len(block)


def test_heat_is_of_the_time_in_which_samples_were_taken() -> None:
    """Windows got four times as long, and so have four times the samples."""
    chance, pages = np.random.default_rng(SEED), None
    for number in range(60):
        length_s = 1.0 if number < 40 else 4.0
        one = window(used(0, rate=length_s), chance)
        pages = absorbed(pages, replace(one, started_ns=one.ended_ns - round(length_s * 1e9)))
    assert pages and memory(pages).windows > LENGTHS[0]
    assert evidence(pages).heat.sum() == pytest.approx(6.0 * BLOCKS, rel=0.1)


def test_nodes_tell_where_blocks_do_not() -> None:
    """All blocks are used alike; the vCPUs changed nodes."""
    block = np.arange(64)
    windows = [Samples(block, block * 0 + int(at < 4), block * 0 + at) for at in range(60)]
    assert best_memory(Samples.joined(windows)).windows == LENGTHS[0]


def test_a_block_that_changed_is_as_hot_as_others_if_all_got_hotter() -> None:
    """One block in 16 changes its node, and the guest does five times as much."""
    some, before = np.arange(3, BLOCKS, 16), np.zeros((BLOCKS, NODES))
    before[np.arange(BLOCKS), np.arange(BLOCKS) % 4] = RATE
    after = 5 * before
    after[some] = np.roll(after[some], 1, axis=1)
    heat = evidence(known([*[before] * 60, *[after] * 6])).heat.sum(axis=1)
    assert heat.sum() == pytest.approx(6 * after.sum(), rel=0.1)
    assert heat[some].mean() == pytest.approx(np.delete(heat, some).mean(), rel=0.3)


def test_a_store_counts_though_a_block_was_read_since() -> None:
    """A third of a sample a window, half of these stores."""
    chance, pages, wrong = np.random.default_rng(SEED), None, 0
    for at in range(60):
        one, both = window(used(0, *range(1, BLOCKS)), chance), window(used(0, 0), chance, writes=0.5)
        pages = absorbed(pages, replace(one, ranges=(_joined(one.ranges[0], both.ranges[0]),)))
        wrong += at > 30 and not evidence(pages).written[0]
    assert wrong <= 2


def test_a_source_that_counts_no_accesses_is_left_as_it_is() -> None:
    """As a file of perf is."""
    pages = None
    for _ in range(6):
        one = window(used(0), np.random.default_rng(SEED))
        pages = absorbed(pages, replace(one, ranges=(replace(one.ranges[0], counted=None),)))
    assert pages and pages.ranges[0].counted == () and entries_of(pages, 1.0) is not None


def test_a_block_in_which_nobody_stored_stays_so() -> None:
    pages = known([used(0)] * 600)
    stored = pages.ranges[0].stored
    assert stored is not None and (stored == 255).all()


def test_of_many_samples_some_are_looked_at() -> None:
    block = np.arange(1 << 17) % 4096
    samples = Samples(block, block % 4, np.sort(np.arange(1 << 17) % 60))
    assert len(samples.thinned().block) <= MOST < len(block)
    assert best_memory(samples).windows >= 32


def test_of_many_samples_that_are_all_old_the_fewest_windows_count() -> None:
    """Those that are looked at have none of the newest."""
    window = np.full(1 << 17, 20)
    window[1:4] = 0
    block = np.arange(1 << 17) % 4096
    assert best_memory(Samples(block, block * 0, window)).windows == LENGTHS[0]
