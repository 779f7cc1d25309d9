"""How many pages with copies were touched, by node, against a count page by page."""

import numpy as np
import pytest

from tests.unit.model.known_pages import known_pages
from vmplace.model.copied_pages import hot_copied
from vmplace.sampling.page_set import PageSet
from vmplace.topology.guest import Movability, RamRange

PAGE = 4096


@pytest.mark.parametrize("seed", range(5))
def test_hot_pages_with_copies_are_counted_by_their_node(seed: int) -> None:
    chance, npages = np.random.default_rng(seed), 2048 + 300
    # The range begins within a block of 2 MiB, and so does what lies before it.
    ram = RamRange((1 << 32) + 100 * PAGE, npages, None, PAGE, Movability.MOVABLE, "")
    hot, nodes, held = (chance.integers(0, most, npages) for most in (2, 3, 2))
    held[600:1300] = 1
    pages = known_pages(ram, (200 * hot).astype(np.uint8), nodes.astype(np.int8), np.zeros(6, np.uint8))
    where = np.append(np.flatnonzero(held), -7)
    copied = PageSet.of(ram.hva // PAGE + where)
    expected = np.bincount(nodes[(hot & held) > 0], minlength=3).tolist()
    assert hot_copied(pages, 3, copied).tolist() == expected
