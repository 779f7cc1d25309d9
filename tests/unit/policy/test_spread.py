"""Which pages are picked, against a plain loop over all pages."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmplace.model.units import Units
from vmplace.policy.spread import HUGE_PAGES, STRATA, count_strata, excess_and_deficit, pick

NODES = 3
SMALL, HUGE = 6 * 512, 9


@dataclass(frozen=True)
class Pages:
    """Small pages and then huge ones, some blocks at a time; each page is a run of its own or part of one."""

    heat: np.ndarray
    node: np.ndarray

    def units(self) -> Iterator[Units]:
        for first in range(0, SMALL, 1024):
            part = slice(first, first + 1024)
            yield Units.of_pages(np.arange(first, first + 1024, 512) * 4096, self.heat[part], self.node[part])
        hva = (SMALL + np.arange(HUGE) * 512) * 4096
        yield Units.of_blocks(hva, self.heat[SMALL:], self.node[SMALL:], huge=True)

    def elsewhere(self, _node: int, /) -> "Pages":
        raise AssertionError("nobody asks")

    def stratum(self, index: int) -> int:
        """Return hot, warm, touched or cold, twice, and whether it is a huge page."""
        heat = int(self.heat[index])
        return 2 * (0 if heat >= 128 else 1 if heat >= 64 else 2 if heat else 3) + (index >= SMALL)


def some_pages(seed: int) -> Pages:
    chance = np.random.default_rng(seed)
    of = np.repeat(np.arange(SMALL // 512), 512) * 512
    alike = chance.random(SMALL // 512)[of // 512] < 0.5
    page = np.where(alike, of, np.arange(SMALL))
    page = np.append(page, SMALL + np.arange(HUGE))
    heat = chance.choice([0, 2, 70, 130, 250], SMALL + HUGE)[page].astype(np.uint8)
    return Pages(heat, chance.integers(0, NODES, SMALL + HUGE)[page].astype(np.int8))


def picked_by_loop(pages: Pages, counts: np.ndarray, excess: np.ndarray, limit: int) -> list[list[int]]:
    """Return the indexes of what each stratum moves."""
    picked: list[list[int]] = [[] for _ in range(STRATA)]
    may, left = [], limit
    for stratum in range(STRATA):
        take = min(left, round(float(excess[stratum].sum())))
        may.append(take // (HUGE_PAGES if stratum % 2 else 1))
        left -= take
    seen = np.zeros((STRATA, NODES))
    for index in range(SMALL + HUGE):
        at = pages.stratum(index), pages.node[index]
        share = excess[at] / counts[at]
        due = np.floor((seen[at] + 1) * share + 0.5) > np.floor(seen[at] * share + 0.5)
        seen[at] += 1
        if due and len(picked[at[0]]) < may[at[0]]:
            picked[at[0]].append(index)
    return picked


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from((10**9, 4000, 700, 37)))
def test_each_node_gives_its_share_at_even_distances_and_the_hottest_goes_first(
    seed: int, limit: int
) -> None:
    pages = some_pages(seed)
    counts = count_strata(pages, NODES)
    weights = np.random.default_rng(seed + 1).dirichlet(np.ones(NODES))
    excess, deficit = excess_and_deficit(counts, weights, np.full(NODES, np.inf))
    picked = pick(pages, counts, excess, deficit, limit)
    wanted = picked_by_loop(pages, counts, excess, limit)
    assert (picked.hva // 4096).tolist() == [
        SMALL + (one - SMALL) * 512 if one >= SMALL else one for some in wanted for one in some
    ]
    assert picked.source.tolist() == [pages.node[one] for some in wanted for one in some]
    assert picked.npages.sum() <= limit
    # Of each stratum the nodes that lack some get what they lack, in proportion.
    ends = np.cumsum([len(some) for some in wanted])
    for stratum, target in enumerate(np.split(picked.target, ends)[:STRATA]):
        of_node = np.bincount(target, minlength=NODES)
        assert of_node == pytest.approx(deficit[stratum] / (deficit[stratum].sum() or 1) * len(target), abs=1)


def test_pages_are_counted_by_stratum_and_node() -> None:
    pages = some_pages(5)
    counts = np.zeros((STRATA, NODES))
    for index in range(SMALL + HUGE):
        counts[pages.stratum(index), pages.node[index]] += 512 if index >= SMALL else 1
    assert (count_strata(pages, NODES) == counts).all()
