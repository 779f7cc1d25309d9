"""Runs of pages, and how many of some are among them, against a set of pages."""

import numpy as np
import pytest

from tests.unit.model.known_pages import known_pages
from vmplace.model.copied_pages import AddressRuns, hot_copied
from vmplace.topology.guest import Movability, RamRange

PAGE = 4096


@pytest.mark.parametrize("seed", range(20))
def test_as_many_are_counted_as_a_set_has(seed: int) -> None:
    chance = np.random.default_rng(seed)
    first, npages = chance.integers(0, 300, 12), chance.integers(1, 30, 12)
    pages = {page for at, count in zip(first, npages, strict=True) for page in range(at, at + count)}
    runs = AddressRuns.of(first * PAGE, npages)
    assert int(runs.npages.sum()) == len(pages) and (np.diff(runs.hva) > 0).all()
    asked, sizes = chance.integers(0, 340, 50), chance.choice([1, 7, 64], 50)
    expected = [
        len(pages & set(range(at, at + size)))
        for at, size in zip(asked.tolist(), sizes.tolist(), strict=True)
    ]
    assert runs.count_in(asked * PAGE, sizes).tolist() == expected


def test_of_none_there_are_none() -> None:
    assert AddressRuns.of((), ()).count_in(np.array([0, PAGE]), 3).tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_hot_pages_with_copies_are_counted_by_their_node(seed: int) -> None:
    chance, npages = np.random.default_rng(seed), 2048 + 300
    # The range begins within a block of 2 MiB, and so does what lies before it.
    ram = RamRange((1 << 32) + 100 * PAGE, npages, None, PAGE, Movability.MOVABLE, "")
    hot, nodes, held = (chance.integers(0, most, npages) for most in (2, 3, 2))
    held[600:1300] = 1
    pages = known_pages(ram, (200 * hot).astype(np.uint8), nodes.astype(np.int8), np.zeros(6, np.uint8))
    where = np.append(np.flatnonzero(held), -7)
    runs = AddressRuns.of(ram.hva + where * PAGE, np.ones(len(where), np.int64))
    expected = np.bincount(nodes[(hot & held) > 0], minlength=3).tolist()
    assert hot_copied(pages, 3, runs).tolist() == expected
