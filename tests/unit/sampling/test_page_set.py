"""Sets of pages by 2 MiB block, against Python's own sets."""

import numpy as np
import pytest

from vmplace.sampling.page_set import NO_PAGES, PageSet


def some(chance: np.random.Generator) -> tuple[PageSet, set[int]]:
    """Return runs in any order, some of them whole blocks, some of the same pages; and what they are."""
    first, npages = chance.integers(0, 4000, 9), chance.choice([1, 7, 512, 513, 1100], 9)
    runs = zip(first.tolist(), npages.tolist(), strict=True)
    pages = {page for at, count in runs for page in range(at, at + count)}
    return PageSet.of_runs(first * 4096, npages), pages


@pytest.mark.parametrize("seed", range(20))
def test_what_is_done_with_page_sets_is_what_is_done_with_sets(seed: int) -> None:
    chance = np.random.default_rng(seed)
    (a, pages_a), (b, pages_b) = some(chance), some(chance)
    found = [(a, pages_a), (a | b, pages_a | pages_b), (a & b, pages_a & pages_b), (a - b, pages_a - pages_b)]
    for one, pages in found:
        assert one.pages().tolist() == sorted(pages) and len(one) == len(pages)
        assert (np.diff(one.blocks) > 0).all() and one.bits.any(axis=1).all()
    order = chance.permutation(sorted(pages_a))
    assert PageSet.of(order).is_same(a) and not (a | PageSet.of([9999])).is_same(a)
    asked, blocks = chance.integers(0, 6000, 60), np.arange(12)
    assert a.are_in(asked).tolist() == [page in pages_a for page in asked.tolist()]
    assert a.counts_of(blocks).tolist() == [sum(page // 512 == at for page in pages_a) for at in range(12)]


@pytest.mark.parametrize("most", [0, 1, 512, 513, 1000, 5000])
def test_the_first_pages_are_those_of_whole_blocks(most: int) -> None:
    every = PageSet.of_runs(np.array([3 * 4096]), np.array([1500]))
    first = every.first(most)
    assert first.pages().tolist() == every.pages()[: len(first)].tolist()
    assert min(most, 1500) <= len(first) < most + 512


def test_of_none_there_are_none_and_what_stays_the_same_is_the_same() -> None:
    every = PageSet.of([1, 2, 700])
    assert not len(NO_PAGES) and not len(every - every) and not len(NO_PAGES & every)
    assert every - NO_PAGES is every and every | NO_PAGES is every and every - PageSet.of([5000]) is every
    assert not NO_PAGES.are_in(np.array([3])).any() and NO_PAGES.counts_of(np.array([0])).tolist() == [0]
    assert NO_PAGES.first(3) is NO_PAGES and not every.is_same(None)
