"""Who uses pages, and who writes them, by bits of the last windows alone."""

import numpy as np
import pytest

from tests.unit.policy.views import NOTHING, NPAGES, bits, view
from vmplace.model.touched_blocks import touched_pages
from vmplace.model.use_by_bits import PageUse, page_use
from vmplace.sampling.sample import NodeBits


def use_of(*windows: NodeBits) -> PageUse:
    seen = view(*windows)
    assert seen.pages
    pages = touched_pages(seen.pages.ranges[0])
    assert pages
    return page_use(pages)


def test_a_page_that_another_node_touched_before_is_shared() -> None:
    use = use_of(bits({1: range(64)}, range(64)), bits({2: range(64)}, range(64)))
    assert use.shared[:64].all() and use.written[:64].all()


def test_pages_among_some_that_are_always_written_are_only_read() -> None:
    window = bits({index: range(64) for index in range(4)}, written=range(32))
    assert use_of(window, window).written[:64].tolist() == [True] * 32 + [False] * 32


@pytest.mark.parametrize("share", [0.05, 0.25])
def test_pages_that_chance_has_spared_from_writes_count_as_written(share: float) -> None:
    chance = np.random.default_rng(1)
    read = {index: range(512) for index in range(4)}
    windows = [bits(read, chance.choice(512, int(512 * share), replace=False)) for _ in range(4)]
    assert use_of(*windows).written[:512].all()


def read_before(share: float, written_windows: int) -> PageUse:
    """Return the use of a table: all nodes read a sixth a window, and wrote some of it in the last ones."""
    chance, windows, count = np.random.default_rng(1), [], NPAGES // 6
    for age in range(8):
        touched = chance.choice(NPAGES, count, replace=False)
        parts = {index: touched[index::4] for index in range(4)}
        written = touched[: int(count * share)] if age < written_windows else NOTHING
        windows.append(bits(parts, written))
    return use_of(*windows)


@pytest.mark.parametrize("written_windows", [1, 2, 3])
def test_that_a_table_was_only_read_before_its_first_writes_says_nothing(written_windows: int) -> None:
    # Three in four of the touched pages are written: each page was seen once or twice.
    use = read_before(3 / 4, written_windows)
    assert use.written[use.in_use].all()


def test_first_writes_to_a_few_pages_say_little_of_those_around_them() -> None:
    assert np.count_nonzero(~read_before(1 / 12, written_windows=1).written) > 0.9 * NPAGES


def randomly_read(chance: np.random.Generator, nodes: tuple[int, ...]) -> NodeBits:
    """Return a window in which each node read 4 % of the pages."""
    return bits({index: chance.integers(NPAGES, size=NPAGES // 25) for index in nodes})


def test_pages_of_a_table_read_at_random_are_shared_whoever_was_seen() -> None:
    """Half of the pages were seen at all, seven in ten of them in one window alone."""
    chance = np.random.default_rng(1)
    use = use_of(*[randomly_read(chance, (0, 1, 2, 3)) for _ in range(4)])
    assert np.count_nonzero(use.shared & ~use.written) > 0.99 * NPAGES


def test_pages_around_those_of_one_node_are_its_own_too() -> None:
    chance = np.random.default_rng(2)
    assert (use_of(*[randomly_read(chance, (2,)) for _ in range(4)]).owner == 2).all()


def test_a_few_pages_do_not_speak_for_their_block() -> None:
    window = bits({2: range(100, 107)})
    assert np.flatnonzero(use_of(window, window).owner == 2).tolist() == list(range(100, 107))
