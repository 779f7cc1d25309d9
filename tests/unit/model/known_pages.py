"""Page statistics as if a source had shown just these windows, for tests of what is concluded from them."""

from dataclasses import replace

import numpy as np

from vmplace.model.page_windows import absorbed, places_of, seen_window
from vmplace.model.pages import HEAT_WINDOWS, RangePages
from vmplace.model.touched_pages import TouchedPages
from vmplace.sampling.block_rows import BlockRows, rows_of_pages
from vmplace.sampling.sample import NodeBits, RangeSample, SampleBatch, SourceCoverage
from vmplace.topology.guest import RamRange


def known_pages(ram: RamRange, heat: np.ndarray, nodes: np.ndarray, huge: np.ndarray) -> RangePages:
    """Return a range whose pages have this heat, seen without nodes."""
    pages = None
    for bit in range(8 - HEAT_WINDOWS, 8):
        sample = RangeSample(ram, (heat >> bit & 1).astype(np.uint8), nodes, huge)
        pages = absorbed(pages, SampleBatch("test", "test", SourceCoverage(), 0, 1, (0,), (sample,)))
    assert pages
    return pages.ranges[0]


def with_history(pages: RangePages, *windows: NodeBits) -> RangePages:
    """Return the range as if the last windows, newest first, had been these."""
    nothing = np.zeros(pages.ram.npages, np.uint8)
    samples = (RangeSample(pages.ram, nothing, nothing.view(np.int8), pages.huge, bits) for bits in windows)
    seen = tuple(seen_window(sample) for sample in samples)
    return replace(pages, seen=(*seen, *pages.seen[len(seen) :]), history=len(seen))


def with_nodes(pages: RangePages, nodes: np.ndarray) -> RangePages:
    """Return the range with its pages elsewhere."""
    heat = np.zeros(pages.ram.npages, np.uint8)
    return replace(pages, nodes=places_of(RangeSample(pages.ram, heat, nodes.astype(np.int8), pages.huge)))


def rate_codes(codes: np.ndarray, ram: RamRange) -> BlockRows:
    """Return the codes [node, page] as they are kept."""
    return BlockRows.of(np.concatenate([rows_of_pages(row, ram, 0) for row in codes]))


def by_page(pages: TouchedPages, of_entries: np.ndarray) -> np.ndarray:
    """Return what holds for each page of the range, which must all have entries."""
    entry = np.repeat(np.arange(pages.entries), pages.sizes)
    inside = np.arange(len(entry)) - (np.cumsum(pages.sizes) - pages.sizes)[entry]
    page = (pages.hva_of(entry) - pages.ram.hva) // 4096 + inside
    assert sorted(page.tolist()) == list(range(pages.ram.npages))
    return of_entries[entry][np.argsort(page)]
