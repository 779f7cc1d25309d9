"""How much each node uses groups of pages: counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import rate_codes, with_nodes
from tests.unit.policy.test_policy_home import NPAGES
from tests.unit.policy.test_policy_nodes import bits, view
from vmplace.model.group_touches import (
    NO_GROUP,
    Groups,
    SharedGroups,
    pages_by_group,
    shared_groups,
    touches_by_group,
)
from vmplace.model.metrics import Matrix
from vmplace.model.page_rates import PER_OCTAVE
from vmplace.model.pages import RangePages
from vmplace.model.touched_blocks import touched_pages
from vmplace.model.touched_pages import TouchedPages
from vmplace.sampling.page_arrays import Bools
from vmplace.sampling.sample import NodeBits, NodeHits

ALL = np.ones(NPAGES, np.bool_)


def pages(*windows: NodeBits) -> RangePages:
    guest = view(*windows)
    assert guest.pages
    return guest.pages.ranges[0]


def entries(seen: RangePages) -> TouchedPages:
    """Return the range's entries, one for each of its pages, as something was seen of each block."""
    found = touched_pages(replace(seen, text=(np.arange(0, NPAGES, 512),)))
    assert found and len(found.heat) == NPAGES
    return found


def grouped(window: NodeBits, shared: Bools) -> SharedGroups:
    return shared_groups(entries(pages(window)), shared)


def touched(seen: RangePages, group: Groups, groups: int) -> Matrix:
    return touches_by_group(entries(seen), group, groups)


def test_pages_that_the_same_nodes_use_are_one_group():
    window = bits({0: range(512), 1: range(512), 2: range(512, 1024), 3: range(512, 1024)})
    groups = grouped(window, ALL)
    users = [groups.users[number].tolist() for number in groups.of_page[[0, 600]]]
    assert users == [[True, True, False, False], [False, False, True, True]]


def test_a_node_that_hardly_touches_a_block_is_not_among_its_users():
    window = bits({0: range(512), 1: range(512), 2: range(10)})
    groups = grouped(window, ALL)
    assert groups.users[groups.of_page[0]].tolist() == [True, True, False, False]


def test_a_block_with_few_touches_goes_with_the_range():
    window = bits({0: range(520), 1: range(512), 2: range(200), 3: range(200)})
    groups = grouped(window, ALL)
    assert groups.users[groups.of_page[515]].tolist() == [True, True, True, True]


def test_pages_that_are_not_shared_are_in_no_group():
    window = bits({0: range(512), 1: range(512)})
    shared = np.arange(NPAGES) < 100
    groups = grouped(window, shared)
    assert (groups.of_page[100:] == NO_GROUP).all() and (groups.of_page[:100] >= 0).all()


def test_a_page_counts_for_each_node_and_window():
    first, second = bits({0: range(10), 2: range(5)}), bits({0: range(20)})
    group = np.where(np.arange(NPAGES) < 8, 0, NO_GROUP).astype(np.int16)
    assert touched(pages(first, second), group, 1).tolist() == [[8.0, 0.0, 2.5, 0.0]]


def test_counted_accesses_weigh_blocks_that_are_touched_alike():
    window = bits({0: range(1024), 1: range(1024)})
    counted = NodeHits(np.repeat(np.arange(0, 512, 4), 8), np.zeros(1024, np.int64))
    seen = replace(pages(window), counted=(counted,))
    group = (np.arange(NPAGES) // 512).astype(np.int16)
    hot, cold = touched(seen, group, NPAGES // 512)[:2, 0]
    assert hot > 5 * cold
    assert hot + cold > 0 and np.isclose(hot + cold + touched(seen, group, 8)[:, 1].sum(), 2048)


def test_the_pace_weighs_blocks_that_are_touched_alike():
    window = bits({0: range(1024), 1: range(1024)})
    codes = np.zeros((4, NPAGES), np.uint8)
    codes[:2, :512], codes[:2, 512:1024] = 100, 100 - 3 * PER_OCTAVE
    seen = replace(pages(window), rate=rate_codes(codes, pages(window).ram))
    group = (np.arange(NPAGES) // 512).astype(np.int16)
    reported = touched(seen, group, NPAGES // 512)[:, :2]
    assert np.allclose(reported[0], 8 * reported[1]) and reported.sum() == pytest.approx(2048)


def test_pages_are_counted_by_group_and_node():
    window = bits({0: range(512)})
    seen = with_nodes(pages(window), np.arange(NPAGES) % 2)
    group = np.where(np.arange(NPAGES) < 10, 1, 0).astype(np.int16)
    assert pages_by_group(entries(seen), group, 2).tolist() == [
        [NPAGES / 2 - 5, NPAGES / 2 - 5, 0, 0],
        [5, 5, 0, 0],
    ]
