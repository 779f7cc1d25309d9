"""What a plan sees of pages, against what was declared to touch them."""

from dataclasses import replace

import numpy as np

from tests.unit.model.known_pages import with_nodes
from tests.unit.model.test_touched_pages import BLOCK, NODES, large, packed
from vmplace.model.evidence import HORIZON_S, Entries, entries_of
from vmplace.model.page_windows import absorbed
from vmplace.model.pages import GuestPages
from vmplace.sampling.sample import NodeBits, RangeSample, SampleBatch, SourceCoverage

MOVABLE = with_nodes(large(1), np.zeros(BLOCK)).ram


def window(touched: np.ndarray, length_s: float) -> SampleBatch:
    """Return a window in which each node [N] touched these pages [N, P]; nobody wrote."""
    nobody = np.zeros((1, BLOCK), np.uint8)
    bits = NodeBits(packed(np.concatenate([touched, nobody])), packed(np.zeros((NODES + 1, BLOCK), np.uint8)))
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


def share_of_one_node(declared: np.ndarray, windows: int) -> tuple[int, float]:
    """Return how many pages were seen from one node alone, and which share of their heat is that node's.

    ``declared[N, P]``: the chance of a touch in a window.
    """
    chance = np.random.default_rng(7)
    seen = [(chance.random(declared.shape) < declared).astype(np.uint8) for _ in range(windows)]
    found = evidence(*(window(one, 0.5) for one in seen))
    by_node = np.sum(seen, axis=0)
    alone = np.flatnonzero((by_node > 0).sum(axis=0) == 1)
    heat = found.heat[alone]
    return len(alone), float((heat.max(axis=1) / heat.sum(axis=1)).mean())


def test_a_table_of_which_few_touches_were_seen_is_shared() -> None:
    """All nodes read all of it; after two windows many pages were seen from one node alone."""
    pages, share = share_of_one_node(np.full((NODES, BLOCK), 0.25), 2)
    assert pages > 100
    assert share < 0.4


def test_pages_of_one_node_each_stay_private_beside_some_that_are_shared() -> None:
    """The control: of each page one node makes as many touches as all four did before, of a few all."""
    owner = np.arange(BLOCK) % NODES
    declared = np.where(np.arange(NODES)[:, None] == owner, 1.0, 0.0)
    declared[:, :10] = 0.25
    pages, share = share_of_one_node(declared, 2)
    assert pages > 450
    assert share > 0.97


def test_a_guest_of_an_older_recording_has_windows_of_the_length_that_is_stated() -> None:
    touched = np.ones((NODES, BLOCK), np.uint8)
    pages = absorbed(absorbed(None, window(touched, 1.0)), window(touched, 1.0))
    found = entries_of(replace(pages, lengths_s=()), 0.5)
    assert found
    assert np.allclose(found.heat, HORIZON_S / 0.5 * np.broadcast_to(found.sizes[:, None], found.heat.shape))
