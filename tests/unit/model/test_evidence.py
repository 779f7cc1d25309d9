"""What a plan sees of pages, against what was declared to touch them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import with_nodes
from tests.unit.model.test_touched_pages import BLOCK, NODES, large, packed
from vmplace.model.evidence import Entries, entries_of
from vmplace.model.heat_horizon import HORIZON_S
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import GuestPages
from vmplace.sampling.sample import EarlyBits, NodeBits, NodeHits, RangeSample, SampleBatch, SourceCoverage

MOVABLE = with_nodes(large(1), np.zeros(BLOCK)).ram


EARLY_S = (0.02, 0.08)


def window(
    touched: np.ndarray, length_s: float, early: tuple[tuple[float, np.ndarray], ...] = ()
) -> SampleBatch:
    """Return a window in which each node [N] touched these pages [N, P]; nobody wrote.

    ``early``: the times after which bits were read before it ended, and which were set then.
    """
    nobody = np.zeros((1, BLOCK), np.uint8)
    readings = tuple(EarlyBits(round(s * 1e9), packed(np.concatenate([one, nobody]))) for s, one in early)
    written = packed(np.zeros((NODES + 1, BLOCK), np.uint8))
    bits = NodeBits(packed(np.concatenate([touched, nobody])), written, readings)
    nothing, anybody = np.zeros(BLOCK, np.uint8), np.asarray(touched.any(axis=0), np.uint8)
    sample = RangeSample(MOVABLE, anybody, nothing.view(np.int8), nothing[:1], bits)
    coverage = SourceCoverage(accessor_nid=True, written=True)
    return SampleBatch("db1", "test", coverage, 0, round(length_s * 1e9), (0, 1, 2, 3), (sample,))


def evidence(*windows: SampleBatch) -> Entries:
    pages: GuestPages | None = None
    for one in windows:
        pages = absorbed(pages, one)
    assert pages
    found = entries_of(pages, 1.0)
    assert found
    return found


def test_touches_count_by_how_long_the_windows_were_in_which_they_were_seen() -> None:
    touched = np.zeros((NODES, BLOCK), np.uint8)
    touched[0, :2], touched[1, 0] = 1, 1
    only_first = touched * (np.arange(BLOCK) == 0)
    found = evidence(window(touched, 1.0), window(only_first.astype(np.uint8), 0.25))
    # Page 0: each of two nodes in both windows; page 1: one node, in one of them.
    assert np.allclose(found.heat[0, :2], 2 / 1.25 * HORIZON_S)
    assert np.isclose(found.heat[1].sum(), 1 / 1.25 * HORIZON_S)
    # What the last window showed is expected to be a quarter of a second's.
    assert np.allclose(found.recent[0, :2], found.heat[0, :2] * 0.25 / HORIZON_S)


def sampled_window(node: int, per_page: int, length_s: float) -> SampleBatch:
    """Return a window of a source that samples, which caught ``node`` so often at each page."""
    touched = np.zeros((NODES, BLOCK), np.uint8)
    touched[node] = 1
    seen = window(touched, length_s)
    pages = np.repeat(np.arange(BLOCK), per_page)
    counted = NodeHits(pages, np.full(len(pages), node, np.int64))
    coverage = replace(seen.coverage, sampled=True)
    return replace(seen, coverage=coverage, ranges=(replace(seen.ranges[0], counted=counted),))


@pytest.mark.parametrize("length_s", [0.25, 1.0])
def test_samples_count_by_how_long_it_took_to_take_them(length_s: float) -> None:
    """Eight a second of each page: 48 in the six seconds that heat is of, however short windows are."""
    found = evidence(*[sampled_window(1, round(8 * length_s), length_s)] * 6)
    assert np.allclose(found.heat.sum(axis=0), [0, 8 * HORIZON_S * BLOCK, 0, 0])
    assert np.allclose(found.recent.sum(axis=0), [0, 8 * length_s * BLOCK, 0, 0])


def test_what_samples_showed_long_ago_is_gone() -> None:
    before, now = sampled_window(1, 8, 1.0), sampled_window(2, 2, 1.0)
    assert evidence(*[before] * 8, *[now] * 3).heat.sum(axis=0).argmax() == 1
    found = evidence(*[before] * 8, *[now] * 4)
    assert np.allclose(found.heat.sum(axis=0), [0, 0, 2 * HORIZON_S * BLOCK, 0])


def share_of_one_node(declared: np.ndarray, length_s: float, early_s: tuple[float, ...]) -> tuple[int, float]:
    """Return how many pages were seen from one node alone, and which share of their heat is that node's.

    ``declared[N, P]``: touches in a window on average; two windows are seen.
    """
    chance = np.random.default_rng(7)
    windows, by_node = [], np.zeros(declared.shape, int)
    for _ in range(2):
        first_s = chance.exponential(length_s, declared.shape) / np.maximum(declared, 1e-9)
        early = tuple((after_s, (first_s < after_s).astype(np.uint8)) for after_s in early_s)
        seen = (first_s < length_s).astype(np.uint8)
        windows.append(window(seen, length_s, early))
        by_node += seen
    heat = evidence(*windows).heat[np.flatnonzero((by_node > 0).sum(axis=0) == 1)]
    return len(heat), float((heat.max(axis=1) / heat.sum(axis=1)).mean())


@pytest.mark.parametrize("early_s", [(), EARLY_S])
@pytest.mark.parametrize("length_s", [0.25, 1.0])
@pytest.mark.parametrize("touches", [0.29, 0.15])
def test_a_table_of_which_few_touches_were_seen_is_shared(
    touches: float, length_s: float, early_s: tuple[float, ...]
) -> None:
    """All nodes read all of it; after two windows many pages were seen from one node alone."""
    pages, share = share_of_one_node(np.full((NODES, BLOCK), touches), length_s, early_s)
    assert pages > 100
    assert share < 0.4


@pytest.mark.parametrize("early_s", [(), EARLY_S])
@pytest.mark.parametrize("length_s", [0.25, 1.0])
def test_pages_of_one_node_each_stay_private_beside_some_that_are_shared(
    length_s: float, early_s: tuple[float, ...]
) -> None:
    """The control: of each page one node makes as many touches as all four did before, of a few all."""
    owner = np.arange(BLOCK) % NODES
    declared = np.where(np.arange(NODES)[:, None] == owner, 4 * 0.29, 0.0)
    declared[:, :10] = 0.29
    pages, share = share_of_one_node(declared, length_s, early_s)
    assert pages > 400
    assert share > 0.95


def test_a_guest_of_an_older_recording_has_windows_of_the_length_that_is_stated() -> None:
    touched = np.ones((NODES, BLOCK), np.uint8)
    pages = absorbed(absorbed(None, window(touched, 1.0)), window(touched, 1.0))
    found = entries_of(replace(pages, lengths_s=()), 0.5)
    assert found
    assert np.allclose(found.heat, HORIZON_S / 0.5 * np.broadcast_to(found.sizes[:, None], found.heat.shape))


def touched_by(*nodes: int) -> np.ndarray:
    touched = np.zeros((NODES, BLOCK), np.uint8)
    touched[list(nodes)] = 1
    return touched


def test_of_the_last_window_count_those_who_touched_pages_in_it() -> None:
    """Node 0 did in seven windows, 2 and 3 in the eighth: heat is mostly 0's, the last window is theirs."""
    found = evidence(*[window(touched_by(0), 1.0)] * 7, window(touched_by(2, 3), 1.0))
    assert found.heat.sum(axis=0).argmax() == 0
    assert np.allclose(found.recent.sum(axis=0) / found.recent.sum(), [0, 0, 0.5, 0.5])
    assert np.isclose(found.recent.sum(), found.heat.sum() / HORIZON_S)


def test_a_page_that_nobody_touched_in_the_last_window_had_no_access_then() -> None:
    found = evidence(*[window(touched_by(0, 1), 1.0)] * 7, window(touched_by(), 1.0))
    assert found.heat.any() and not found.recent.any()


def test_of_samples_the_last_window_counts_its_own() -> None:
    found = evidence(*[sampled_window(1, 8, 1.0)] * 3, sampled_window(2, 2, 1.0))
    assert found.heat.sum(axis=0).argmax() == 1
    assert found.recent.sum(axis=0).tolist() == [0, 0, 2 * BLOCK, 0]


def test_blocks_that_are_taken_as_a_whole_had_no_access_either_where_nobody_touched_them() -> None:
    half = touched_by(0) * (np.arange(BLOCK) % 2).astype(np.uint8)
    pages: GuestPages | None = None
    for touched in (*[half] * 5, touched_by()):
        pages = absorbed(pages, window(touched, 1.0))
    assert pages
    for most in (None, 0):
        found = entries_of(pages, 1.0, most)
        assert found and found.heat.any() and not found.recent.any()


def test_a_few_samples_of_pages_that_are_shared_alike_give_them_no_owner() -> None:
    """Each page was caught once: by chance, half of them from either node."""
    chance = np.random.default_rng(1)
    batches = []
    for _ in range(4):
        batch = sampled_window(1, 1, 1.0)
        hits = NodeHits(np.arange(BLOCK), chance.integers(0, 2, BLOCK))
        batches.append(replace(batch, ranges=(replace(batch.ranges[0], counted=hits),)))
    found = evidence(*batches)
    shares = found.recent[:, :2] / found.recent.sum(axis=1, keepdims=True)
    assert np.abs(shares - 0.5).max() < 0.2


def test_samples_tell_who_uses_a_page_that_all_nodes_touch_in_each_window() -> None:
    """Two nodes set its bit each time; nine accesses in ten are one node's, and many were caught."""
    batches = []
    for _ in range(4):
        batch = window(touched_by(0, 1), 1.0)
        nodes = np.tile(np.arange(100) % 10 == 0, BLOCK).astype(int)
        hits = NodeHits(np.repeat(np.arange(BLOCK), 100), nodes)
        batches.append(replace(batch, ranges=(replace(batch.ranges[0], counted=hits),)))
    heat = evidence(*batches).heat
    assert np.allclose(heat[:, 0] / heat.sum(axis=1), 0.9, atol=0.05)
    by_bits = evidence(*[window(touched_by(0, 1), 1.0)] * 4).heat
    assert np.allclose(heat.sum(axis=1), by_bits.sum(axis=1))


def of_large_guest(
    nodes: Callable[[np.random.Generator, np.ndarray], np.ndarray], written: int = 0, seen: int = 16
) -> Entries:
    """Return evidence of 64 blocks in huge pages: 16 samples in each of 8 windows, of some of them.

    ``nodes``: of which nodes samples of these blocks are; all but the first ``written`` samples read.
    ``seen``: of 16 blocks the first so many are sampled.
    """
    chance, batches = np.random.default_rng(5), []
    for _ in range(8):
        block = chance.integers(0, 4, 16) * 16 + chance.integers(0, seen, 16)
        batches.append(huge_window(64, block, nodes(chance, block), np.arange(16) < written))
    return evidence(*batches)


def by_any(chance: np.random.Generator, block: np.ndarray) -> np.ndarray:
    return chance.integers(0, 4, len(block))


def test_of_a_guest_with_two_samples_a_block_what_all_nodes_use_alike_is_known_to_be_so() -> None:
    found = of_large_guest(by_any)
    heat = found.heat.sum(axis=1)
    assert heat.min() > 0.5 * heat.mean() and heat.max() < 2 * heat.mean()
    assert np.abs(found.heat / heat[:, None] - 0.25).max() < 0.15


def test_and_what_each_node_uses_of_it_alone_is_that_nodes() -> None:
    found = of_large_guest(lambda _, block: block // 16)
    owners = found.heat.argmax(axis=1)
    assert owners.tolist() == np.repeat(np.arange(4), 16).tolist()
    assert (found.heat.max(axis=1) > 0.8 * found.heat.sum(axis=1)).all()


@pytest.mark.parametrize("written", [0, 4])
def test_blocks_without_samples_count_as_written_where_others_are(written: int) -> None:
    found = of_large_guest(by_any, written, seen=12)
    unseen = np.arange(64) % 16 >= 12
    assert found.heat[unseen].any()
    assert set(found.written[unseen].tolist()) == {written > 0}
    assert not found.written[~unseen].all()


def test_a_part_that_is_written_is_known_by_what_is_around_though_most_of_the_guest_is_read() -> None:
    """Of 32 parts of 32 MiB one is written; of half of its blocks there is no sample."""
    batches = []
    for _ in range(4):
        block = np.arange(0, 512, 2)
        batches.append(huge_window(512, block, np.zeros(256, np.int64), block >= 496))
    found = evidence(*batches)
    assert found.written[496:].all() and not found.written[:496].any()


def test_a_part_where_only_reads_were_sampled_counts_as_the_range_does_where_it_was_not_sampled() -> None:
    """The first 32 MiB are read, the others written; of half of the blocks there is no sample."""
    block = np.arange(0, 64, 2)
    found = evidence(*[huge_window(64, block, np.zeros(32, np.int64), block >= 16)] * 3)
    assert found.written[:16].tolist() == [False, True] * 8


def huge_window(blocks: int, block: np.ndarray, rows: np.ndarray, wrote: np.ndarray) -> SampleBatch:
    """Return a window with a sample of each of these blocks, of huge pages, by these nodes."""
    ram = replace(MOVABLE, npages=blocks * BLOCK)
    bits = np.zeros((2, NODES + 1, blocks), np.uint8)
    bits[0, rows, block] = bits[1, rows[wrote], block[wrote]] = 1
    accessed, written = (packed(np.repeat(one, BLOCK, axis=1)) for one in bits)
    some, huge = np.repeat(bits[0].any(axis=0), BLOCK).astype(np.uint8), np.ones(blocks, np.uint8)
    where = np.zeros(blocks * BLOCK, np.int8)
    counted = NodeHits(block * BLOCK + 7, rows)
    sample = RangeSample(ram, some, where, huge, NodeBits(accessed, written), counted=counted)
    coverage = SourceCoverage(accessor_nid=True, written=True, sampled=True)
    return SampleBatch("db1", "ibs", coverage, 0, 10**9, (0, 1, 2, 3), (sample,))


@pytest.mark.parametrize("last", [0, 1], ids=["never", "not lately"])
def test_a_guest_without_samples_has_no_heat_and_no_trouble(last: int) -> None:
    nothing = np.zeros(0, np.int64)
    idle = huge_window(16, nothing, nothing, nothing > 0)
    busy = huge_window(16, np.arange(16), np.zeros(16, np.int64), np.zeros(16, np.bool_))
    found = evidence(*[busy if last else idle] * 3, idle)
    assert found.heat.any() == bool(last) and not found.recent.any()


def test_small_pages_of_blocks_that_were_hardly_sampled_are_as_those_around() -> None:
    """Four blocks of small pages that two nodes use alike; of one, there is no sample."""
    chance, blocks, batches = np.random.default_rng(2), 4, []
    for _ in range(4):
        one = huge_window(blocks, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.bool_))
        hits = NodeHits(chance.integers(0, 3 * BLOCK, 30), chance.integers(0, 2, 30))
        apart = np.tile([0, 1], blocks * BLOCK // 2).astype(np.int8)
        sample = replace(one.ranges[0], counted=hits, huge=np.zeros(blocks, np.uint8), node_index=apart)
        batches.append(replace(one, ranges=(sample,)))
    heat = evidence(*batches).heat.reshape(blocks, BLOCK, NODES)
    by_block = heat.sum(axis=(1, 2))
    assert by_block[:3] == pytest.approx(by_block[:3].mean(), rel=0.5)
    assert 0 < by_block[3] < 0.5 * by_block[:3].mean()
    # Of 30 samples a second.
    assert heat.sum() == pytest.approx(30 * HORIZON_S, rel=0.3)
    assert heat[3].sum(axis=0) / by_block[3] == pytest.approx([0.5, 0.5, 0.0, 0.0], abs=0.1)
