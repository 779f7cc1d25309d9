"""What is asked of the entries of a range has the same answers as if it were asked of all its pages."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.model.known_pages import known_pages, rate_codes, with_history
from vmplace.model import touched_blocks
from vmplace.model.pages import RangePages
from vmplace.model.touched_blocks import touched_pages
from vmplace.model.touched_pages import TouchedPages
from vmplace.model.use_fused import fused_use
from vmplace.sampling.sample import NodeBits, NodeHits
from vmplace.topology.guest import Movability, RamRange

HVA = 1 << 40
BLOCK = 512
NODES = 4


def packed(pages: np.ndarray) -> np.ndarray:
    padded = np.zeros((len(pages), -(-pages.shape[1] // 64) * 64), np.uint8)
    padded[:, : pages.shape[1]] = pages
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)


def unbit(words: np.ndarray) -> np.ndarray:
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")


@dataclass(frozen=True)
class Declared:
    """A range as it is known, and what was declared of its pages."""

    pages: RangePages
    history: tuple[NodeBits, ...]
    older: np.ndarray
    nodes: np.ndarray
    codes: np.ndarray


def some_range(seed: int, offset: int, npages: int) -> Declared:
    """Return a range that begins ``offset`` pages into a block; of most blocks nothing was seen."""
    chance, blocks = np.random.default_rng(seed), -(-(offset + npages) // BLOCK)
    block = (np.arange(npages) + offset) // BLOCK
    used = chance.random(blocks) < 0.3
    huge = chance.random(blocks) < 0.3
    huge[0] &= not offset
    huge[-1] &= (offset + npages) % BLOCK == 0
    # A huge page is seen as a whole, and so are some blocks of small ones.
    alike = huge | (chance.random(blocks) < 0.4)
    of_whole = np.where(alike[block], np.searchsorted(block, block), np.arange(npages))
    style = chance.integers(0, 4, blocks)[block]
    history = []
    for _ in range(4):
        touched = chance.random((NODES + 1, npages)) < 0.6
        touched[NODES] = False
        # Private to a node, shared by all, shared by two, or nearly private.
        alone = (np.arange(npages) % NODES)[None] == np.arange(NODES + 1)[:, None]
        touched &= np.where(style == 0, alone, np.where(style == 2, np.arange(NODES + 1)[:, None] < 2, True))
        touched &= used[block]
        written = touched & (chance.random(touched.shape) < 0.3) & (style != 1)
        history.append(NodeBits(packed(touched[:, of_whole]), packed(written[:, of_whole])))
    rates = chance.integers(0, 200, (NODES, npages)).astype(np.uint8)
    seen = np.flatnonzero(used[block])
    sizes = (300, 0, 40) if len(seen) and seed % 2 else ()
    counted = tuple(NodeHits(chance.choice(seen, size), chance.integers(0, NODES, size)) for size in sizes)
    ram = RamRange(HVA + offset * 4096, npages, None, 4096, Movability.MOVABLE, "")
    heat = chance.integers(0, 255, npages).astype(np.uint8)[of_whole]
    nodes = chance.integers(-1, NODES, blocks)[block].astype(np.int8)
    pages = replace(
        with_history(known_pages(ram, heat, nodes, huge.astype(np.uint8)), *history),
        counted=counted,
        text=(np.sort(chance.choice(npages, 5)),) if seed % 3 == 0 else (),
        rate=rate_codes(rates[:, of_whole], ram) if seed % 5 < 3 else None,
    )
    return Declared(pages, tuple(history), heat & 0b1110, nodes, rates[:, of_whole])


def large(blocks: int, *windows: NodeBits, huge: int = 0) -> RangePages:
    """Return a range whose first ``huge`` blocks are huge pages."""
    ram = RamRange(HVA, blocks * BLOCK, None, 4096, Movability.MOVABLE, "")
    nothing = np.zeros(ram.npages, np.uint8)
    whole = (np.arange(blocks) < huge).astype(np.uint8)
    return with_history(known_pages(ram, nothing, nothing.view(np.int8), whole), *windows)


def touched(pages: RangePages) -> TouchedPages:
    found = touched_pages(pages)
    assert found
    return found


def use_by_page(some: TouchedPages) -> list[np.ndarray]:
    """Return who uses each page, and how, -1 where nothing is known of it."""
    use = fused_use(some)
    values = (use.owner, use.shared, use.written, use.in_use)
    entry = np.repeat(np.arange(some.entries), some.sizes)
    inside = np.arange(len(entry)) - (np.cumsum(some.sizes) - some.sizes)[entry]
    page = (some.hva_of(entry) - some.ram.hva) // 4096 + inside
    there = (page >= 0) & (page < some.ram.npages)
    found = []
    for value in values:
        of_pages = np.full(some.ram.npages, -1, np.int8)
        of_pages[page[there]] = value[entry[there]]
        found.append(of_pages)
    return found


RANGES = st.builds(
    some_range, st.integers(0, 10**6), st.sampled_from((0, 64, 37, 448)), st.integers(1, 20 * BLOCK)
)


@settings(max_examples=60, deadline=None)
@given(RANGES)
def test_blocks_that_nobody_touched_change_nothing(declared: Declared) -> None:
    pages = declared.pages
    # Of a source that samples, all blocks have entries.
    everything = replace(touched(replace(pages, sampled=True)), sampled=False)
    for mine, whole in zip(use_by_page(touched(pages)), use_by_page(everything), strict=True):
        known = mine >= 0
        assert (mine[known] == whole[known]).all()


@settings(max_examples=100, deadline=None)
@given(RANGES)
def test_blocks_whose_pages_are_alike_change_nothing(declared: Declared) -> None:
    pages = declared.pages
    history = touched_blocks._history
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(touched_blocks, "_history", lambda some: (history(some)[0], np.ones(some.blocks, bool)))
        assert len(touched(pages).whole) == np.count_nonzero(touched(pages).is_huge)
        page_by_page = use_by_page(touched(pages))
    for mine, whole in zip(use_by_page(touched(pages)), page_by_page, strict=True):
        assert (mine == whole).all()


@settings(max_examples=60, deadline=None)
@given(RANGES)
def test_what_is_known_of_a_page_goes_with_its_address(declared: Declared) -> None:
    pages = declared.pages
    some = touched(pages)
    # Each entry's own pages.
    entry = np.repeat(np.arange(some.entries), some.sizes)
    inside = np.arange(len(entry)) - (np.cumsum(some.sizes) - some.sizes)[entry]
    page = (some.hva_of(entry) - pages.ram.hva) // 4096 + inside
    there = (page >= 0) & (page < pages.ram.npages)
    assert (there == some.exists[entry]).all() and not some.touches[:, entry[~there]].any()
    page, entry = page[there], entry[there]
    anybody = [bits.anywhere(pages.ram.npages) for bits in declared.history]
    heat = declared.older + sum(of_window << 7 - window for window, of_window in enumerate(anybody))
    known = [(declared.nodes, some.node_index)]
    if pages.rate:
        assert some.codes is not None
        known += zip(declared.codes, some.codes, strict=True)
    for of_pages, of_range in zip((heat, declared.nodes), pages.part(0, pages.ram.npages), strict=True):
        assert (of_pages == of_range).all()
    assert all((of_pages[page] == of_entries[entry]).all() for of_pages, of_entries in known)
    touches = np.sum([unbit(bits.accessed) for bits in declared.history], axis=0)
    assert (touches[:, page] == some.touches[:, entry]).all()
    # Nothing that was touched is left out.
    assert touches.sum() == (some.touches * some.sizes).sum()
    assert len(some.counted) == len(pages.counted)
    for windows in range(len(pages.counted) + 2):
        kept, newest = some.counted.newest(windows), pages.counted[:windows]
        rows = [row for one in newest for row in one.rows.tolist()]
        block = [(page * 4096 + pages.ram.hva) >> 21 for one in newest for page in one.pages.tolist()]
        assert (some.hva_of(kept.pages) >> 21).tolist() == block and kept.rows.tolist() == rows


def test_a_huge_page_is_one_entry_and_counts_as_all_its_pages() -> None:
    rows = np.zeros((NODES + 1, 8 * BLOCK), np.bool_)
    rows[0, : 2 * BLOCK], rows[2, :BLOCK] = True, True
    bits = NodeBits(packed(rows), None)
    some = touched(large(8, bits, bits, huge=1))
    assert some.entries == 2 and some.blocks.tolist() == [1, 0] and some.is_huge.tolist() == [False, True]
    assert some.hva_of(np.arange(2)).tolist() == [HVA + BLOCK * 4096, HVA]
    assert some.by_block(some.touches[2]).tolist() == [0, 2 * BLOCK] and some.sizes.sum() == 2 * BLOCK


def test_what_is_kept_follows_what_was_touched() -> None:
    accessed = np.zeros((NODES + 1, 4096 * 8), np.uint64)
    accessed[2, 8 * 1000 + 3] = 1
    some = touched(large(4096, NodeBits(accessed, None)))
    assert some.entries == BLOCK and some.hva_of(np.array([7])) == HVA + (1000 << 21) + 7 * 4096


def test_a_source_that_samples_speaks_for_all_pages_one_that_sees_no_nodes_for_none() -> None:
    pages = some_range(1, 0, 8 * BLOCK).pages
    assert touched(replace(pages, sampled=True)).sizes.sum() == 8 * BLOCK
    assert touched_pages(replace(pages, history=0)) is None
