"""The page statistics of the C core, held against a plain model of one boolean per page, node and window."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from vmplace.model.page_statistics import BLOCK_PAGES, PageReading, PageStatistics, heat_bits_of

BLOCKS = 3
NPAGES = BLOCKS * BLOCK_PAGES - 100
GIB_PAGES = 1 << 18


@dataclass
class Plain:
    """The same as the statistics, without any thought of size."""

    nodes: int

    def __post_init__(self) -> None:
        size = BLOCKS * BLOCK_PAGES
        self.windows = [np.zeros((size, self.nodes), bool) for _ in range(heat_bits_of(self.nodes))]
        self.written = np.zeros((size, self.nodes), bool)
        self.node, self.moved, self.wrote = (np.zeros(size, int) for _ in range(3))
        self.node[:] = -1

    def begin_window(self) -> None:
        self.windows = [np.zeros_like(self.windows[0]), *self.windows[:-1]]

    def begin_epoch(self) -> None:
        self.written[:] = False
        self.moved, self.wrote = np.maximum(self.moved - 1, 0), np.maximum(self.wrote - 1, 0)

    def touch(self, pages: np.ndarray, node: int, wrote: np.ndarray) -> None:
        self.windows[0][pages, node] = True
        # The mark of a page is set by the first write of each node in an epoch.
        self.wrote[pages[wrote]] = 3
        self.written[pages[wrote], node] = True

    def heat(self) -> np.ndarray:
        bits = len(self.windows)
        return sum(window.astype(int) << (bits - 1 - age) for age, window in enumerate(self.windows))  # type: ignore[return-value]


def bitmap(pages: np.ndarray) -> np.ndarray:
    bits = np.zeros(BLOCKS * BLOCK_PAGES, np.uint8)
    bits[pages] = 1
    return np.packbits(bits, bitorder="little").view(np.uint64)


def harvest_bitmaps(
    stats: PageStatistics, plain: Plain, pages: np.ndarray, node: int, wrote: np.ndarray
) -> None:
    accessed, written = (np.zeros((stats.nodes, BLOCKS * 8), np.uint64) for _ in range(2))
    accessed[node], written[node] = bitmap(pages), bitmap(pages[wrote])
    # A write without a mark of the access counts as one, too.
    accessed[node] &= ~written[node]
    begin = len(pages) % 2 == 0
    stats.absorb_window(accessed, written, begin=begin)
    if begin:
        plain.begin_window()
    plain.touch(pages, node, wrote)


def harvest_records(
    stats: PageStatistics, plain: Plain, pages: np.ndarray, node: int, wrote: np.ndarray
) -> None:
    accessed, dirty = bitmap(pages), bitmap(pages[wrote])
    where = np.flatnonzero(accessed)
    records = np.zeros((len(where), 4), np.uint64)
    records[:, 0], records[:, 1] = 512 + where * 64, (1 << 32) | (node * 2)
    records[:, 2], records[:, 3] = accessed[where], dirty[where]
    assert stats.absorb_records(records.ravel(), 512, [2 * n for n in range(stats.nodes)]) == 0
    plain.touch(pages, node, wrote)


def harvest_huge(
    stats: PageStatistics, plain: Plain, pages: np.ndarray, node: int, wrote: np.ndarray
) -> None:
    block, dirty = int(pages[0]) // BLOCK_PAGES, bool(wrote[0])
    record = np.array([block * 512, (2 << 32) | node, 1, int(dirty)], np.uint64)
    assert stats.absorb_records(record, 0, range(stats.nodes)) == 0
    whole = np.arange(block * 512, block * 512 + 512)
    plain.touch(whole, node, np.full(512, dirty))


def samples(stats: PageStatistics, plain: Plain, pages: np.ndarray, node: int, wrote: np.ndarray) -> None:
    nodes = np.full(len(pages), node, np.int32)
    assert stats.absorb_samples(pages.astype(np.uint64), nodes, wrote.astype(np.uint8)) == 0
    plain.touch(pages, node, wrote)


def move(stats: PageStatistics, plain: Plain, pages: np.ndarray, node: int, wrote: np.ndarray) -> None:
    assert stats.note_moved(pages.astype(np.uint64), node) == 0
    plain.node[pages], plain.moved[pages] = node, 3


def move_block(stats: PageStatistics, plain: Plain, pages: np.ndarray, node: int, wrote: np.ndarray) -> None:
    block = int(pages[0]) // BLOCK_PAGES
    stats.note_moved_blocks(np.array([block], np.uint64), node)
    whole = slice(block * 512, block * 512 + 512)
    plain.node[whole], plain.moved[whole] = node, 3


def place(stats: PageStatistics, plain: Plain, pages: np.ndarray, node: int, wrote: np.ndarray) -> None:
    plain.node[pages] = node
    plain.node[NPAGES:] = -1
    stats.note_places(plain.node[:NPAGES].astype(np.int8))


def window(stats: PageStatistics, plain: Plain, pages: np.ndarray, node: int, wrote: np.ndarray) -> None:
    stats.begin_window()
    plain.begin_window()


def epoch(stats: PageStatistics, plain: Plain, pages: np.ndarray, node: int, wrote: np.ndarray) -> None:
    stats.begin_epoch()
    plain.begin_epoch()


STEPS: list[Callable[..., None]] = [
    *(harvest_bitmaps, harvest_records, harvest_huge, samples),
    *(move, move_block, place, window, window, epoch),
]


Stretch = tuple[int, int]
STRETCHES = st.one_of(
    st.integers(0, BLOCKS - 1).map(lambda block: (block * BLOCK_PAGES, BLOCK_PAGES)),
    st.tuples(st.integers(0, NPAGES - 1), st.sampled_from([1, 2, 64, 100, 700])),
)
"""First page and length: whole blocks, or what makes the pages of one differ."""


def known(stats: PageStatistics) -> PageReading:
    return stats.read(np.arange(BLOCKS * BLOCK_PAGES, dtype=np.uint64))


@settings(max_examples=150, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    nodes=st.sampled_from([1, 2, 4, 8, 15]),
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), STRETCHES, st.integers(0, 15), st.integers(0, 2)), max_size=25
    ),
)
def test_the_statistics_are_those_of_the_plain_model(
    nodes: int, steps: list[tuple[Callable[..., None], Stretch, int, int]]
) -> None:
    stats, plain = PageStatistics(NPAGES, nodes), Plain(nodes)
    for step, (start, length), node, writes in steps:
        pages = np.arange(start, min(start + length, NPAGES))
        wrote = np.zeros(len(pages), bool) if writes == 0 else np.arange(len(pages)) % writes == 0
        step(stats, plain, pages, node % nodes, wrote)
    got = known(stats)
    assert (got.heat == plain.heat()).all()
    assert (got.written == plain.written).all()
    assert (got.node_index == plain.node).all()
    assert (got.moved == plain.moved).all()
    assert (got.wrote == plain.wrote).all()
    touched = plain.windows[0].reshape(BLOCKS, BLOCK_PAGES, nodes).sum(axis=1)
    assert (stats.touched == touched).all()
    check_sharing(stats, plain)


def check_sharing(stats: PageStatistics, plain: Plain) -> None:
    used = np.any(plain.windows, axis=0)
    users, sharing = used.sum(axis=1), stats.sharing()
    for row, node in enumerate([*range(stats.nodes), -1]):
        here = plain.node == node
        assert sharing.shared_read[row] == np.count_nonzero(here & (users > 1) & (plain.wrote == 0))
        assert sharing.shared_written[row] == np.count_nonzero(here & (users > 1) & (plain.wrote > 0))
        for n in range(stats.nodes):
            assert sharing.exclusive[row, n] == np.count_nonzero(here & (users == 1) & used[:, n])
    total = sum(int(counts.sum()) for counts in vars(sharing).values())
    assert total == NPAGES


def test_blocks_whose_pages_are_alike_again_are_merged() -> None:
    stats = PageStatistics(BLOCKS * BLOCK_PAGES, 4)
    stats.absorb_samples(np.array([5, 600], np.uint64), np.array([0, 3], np.int32), np.zeros(2, np.uint8))
    split = stats.split_blocks
    for _ in range(stats.heat_bits + 8):
        stats.begin_window()
    assert (split, stats.split_blocks) == (2, 0)


@pytest.mark.parametrize(("nodes", "most"), [(1, 4), (2, 4), (4, 4), (8, 4), (15, 7)])
def test_a_page_takes_at_most_four_bytes_up_to_eight_nodes(nodes: int, most: int) -> None:
    stats = PageStatistics(4 * GIB_PAGES, nodes)
    whole = stats.used_bytes
    every_other = np.arange(0, 4 * GIB_PAGES, 2, dtype=np.uint64)
    stats.absorb_samples(
        every_other, np.zeros(len(every_other), np.int32), np.zeros(len(every_other), np.uint8)
    )
    assert whole / stats.blocks <= 80
    assert (stats.used_bytes - whole) / stats.npages <= most


def test_what_belongs_to_no_page_or_node_is_told() -> None:
    stats = PageStatistics(BLOCK_PAGES, 2)
    pages, nodes = np.array([0, 512, 1], np.uint64), np.array([-1, 0, 1], np.int32)
    assert stats.absorb_samples(pages, nodes, np.zeros(3, np.uint8)) == 2
    record = np.array([0, 1 << 32 | 7, 1, 0], np.uint64)
    assert stats.absorb_records(record, 0, [0, 1]) == 1
    assert stats.absorb_records(record, 1 << 20, [0, 7]) == 1


def test_exclusivity_is_equation_6_of_kmaf() -> None:
    heat = np.array([[3, 1], [4, 1], [5, 2], [6, 2], [1, 0], [2, 0]], np.uint8)
    reading = PageReading(heat, heat > 9, *(np.zeros(6, np.int8),), *(np.zeros(6, np.uint8),) * 2)
    assert reading.exclusive_node().tolist() == [-1, 0, -1, 0, -1, 0]


@pytest.mark.parametrize("nodes", [0, 16])
def test_a_number_of_nodes_that_does_not_fit_is_refused(nodes: int) -> None:
    with pytest.raises(ValueError, match="1 to 15 nodes"):
        PageStatistics(512, nodes)
