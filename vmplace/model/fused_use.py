"""Who uses each page, how surely, and which copies come first, from several sources at once?

Accessed and dirty bits say who and whether written (page_use.py); counted samples say how hot for whom, by
2 MiB block, as they are few; hint faults say which pages are code.

1. Of a block that one node has ``SHARE`` of the heat of (fusion.py), pages that are shared and written go to
   that node: bits cannot tell a node that reads a page once a window from one that does nothing else.
2. Code counts as written only if a write was seen.  Pages around it that are written do not matter.
3. Copies are worth the heat of the page, times how surely nobody writes it: of w windows with touches and no
   write, the next has none in (w + 1) / (w + 2) cases (Laplace).  Code comes before everything else.

Source: Carrefour (ASPLOS'13, section 3.2); Kumar and Saxena, An Analysis of Shared Library Performance on
NUMA Architectures: code is fetched by all, never written, and one copy of it congests the node that has it.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vmplace.model.fusion import Fused, fused
from vmplace.model.page_use import (
    Bools,
    Counts,
    PageUse,
    block_count,
    block_of_pages,
    by_block,
    of_pages,
    page_use,
    seen_pages,
    unite_huge,
)
from vmplace.model.pages import RangePages
from vmplace.model.sampled_use import BLOCK_SAMPLES, SHARE
from vmplace.sampling.sample import Indexes, NodeIndexes, unpacked

NEIGHBOUR_BLOCKS = 16
"""Blocks that tell of each other: 32 MiB."""
Floats = npt.NDArray[np.float64]


def fused_use(pages: RangePages, nodes: int) -> PageUse | None:
    """Return what the range's history, samples and sights of code tell; None from sources without nodes."""
    use = page_use(pages, nodes)
    if use is None:
        return None
    if pages.text:
        written = np.where(text_pages(pages), seen_pages(pages, nodes).written, use.written)
        use = replace(use, written=written.astype(np.bool_))
    if not pages.counted:
        return use
    leader = of_pages(_leader(block_heat(pages, nodes)), pages.ram)
    led = use.shared & use.written & (leader >= 0)
    return replace(use, owner=np.where(led, leader, use.owner).astype(np.int8), shared=use.shared & ~led)


def block_heat(pages: RangePages, nodes: int) -> Fused:
    """Return the heat of each 2 MiB block [B, nodes], in touched pages: by bits, weighed by samples."""
    expected = np.zeros((block_count(pages.ram), nodes))
    for bits in pages.history:
        for row in range(nodes):
            expected[:, row] += by_block(unpacked(bits.accessed[row], pages.ram.npages) != 0, pages.ram)
    samples = np.zeros_like(expected)
    for hits in pages.counted:
        known = hits.rows < nodes
        np.add.at(samples, (block_of_pages(hits.pages[known], pages.ram), hits.rows[known]), 1)
    return fused(expected, samples, np.arange(len(expected)) // NEIGHBOUR_BLOCKS)


def copy_order(pages: RangePages, nodes: int, wanted: Indexes) -> Indexes:
    """Return ``wanted`` in the order in which copies of its pages are worth most; huge pages stay whole."""
    seen, heat = seen_pages(pages, nodes), block_heat(pages, nodes).heat.sum(axis=1)
    # Of a block's heat each page has its part, by how often it was touched.
    touches = np.maximum(_touches(pages, seen.windows), 1)
    block = block_of_pages(wanted, pages.ram)
    windows = seen.windows[wanted].astype(np.float64)
    worth = heat[block] / touches[block] * windows * (windows + 1) / (windows + 2)
    text = text_pages(pages).view(np.uint8)
    unite_huge(pages, text, np.maximum)
    order: Indexes = np.lexsort((-worth, text[wanted] == 0))
    return wanted[order]


def text_pages(pages: RangePages) -> Bools:
    """Return of which pages code was seen to be fetched."""
    text = np.zeros(pages.ram.npages, np.bool_)
    for some in pages.text:
        text[some] = True
    return text


def _leader(heat: Fused) -> NodeIndexes:
    """Return the node that has nearly all heat of each block, -1 where none has, or few samples say so."""
    total = heat.heat.sum(axis=1)
    samples = heat.samples.sum(axis=1)
    leads = (heat.heat.max(axis=1) >= SHARE * total) & (samples >= BLOCK_SAMPLES)
    return np.where(leads, heat.heat.argmax(axis=1), -1).astype(np.int8)


def _touches(pages: RangePages, windows: npt.NDArray[np.uint8]) -> Counts:
    """Return the sum of the windows in which each block's pages were touched."""
    total: Counts = np.zeros(block_count(pages.ram), np.int32)
    for least in range(1, int(windows.max(initial=0)) + 1):
        total += by_block(windows >= least, pages.ram)
    return total
