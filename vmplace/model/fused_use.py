"""Who uses each page, how surely, and which copies come first, from several sources at once?

Accessed and dirty bits say who and whether written (page_use.py), and how often where they are read several
times a window (page_pace.py); counted samples say how hot for whom, by 2 MiB block, as they are few; hint
faults say which pages are code.

1. Pages that are shared and written go to the node that has ``SHARE`` of their heat, if there is one: of the
   block's heat (fusion.py) where samples enough were counted, else of the page's own pace, if the page was
   touched in ``CERTAIN_WINDOWS`` windows.  Bits that are read once a window cannot tell a node that reads a
   page once from one that does nothing else.
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
    CERTAIN_WINDOWS,
    Bools,
    PageUse,
    block_count,
    block_of_pages,
    by_block,
    of_pages,
    page_use,
    seen_pages,
    sum_by_block,
    unite_huge,
)
from vmplace.model.pages import RangePages
from vmplace.model.sampled_use import BLOCK_SAMPLES, SHARE
from vmplace.sampling.sample import Bytes, Indexes, NodeIndexes, unpacked

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
    led = use.shared & use.written
    if not led.any():
        return use
    leader = _leader_of_pages(pages, nodes)
    led &= leader >= 0
    return replace(use, owner=np.where(led, leader, use.owner).astype(np.int8), shared=use.shared & ~led)


def block_heat(pages: RangePages, nodes: int) -> Fused:
    """Return the heat of each 2 MiB block [B, nodes], in touched pages: by bits, weighed by samples."""
    expected, samples = _expected(pages, nodes), np.zeros((block_count(pages.ram), nodes))
    for hits in pages.counted:
        known = hits.rows < nodes
        np.add.at(samples, (block_of_pages(hits.pages[known], pages.ram), hits.rows[known]), 1)
    return fused(expected, samples, np.arange(len(expected)) // NEIGHBOUR_BLOCKS)


def _expected(pages: RangePages, nodes: int) -> Floats:
    """Return the touched pages of the history by block and node, dealt out by pace where it is known."""
    touched, paced = np.zeros((block_count(pages.ram), nodes)), np.zeros((block_count(pages.ram), nodes))
    for row in range(nodes):
        for bits in pages.history:
            touched[:, row] += by_block(unpacked(bits.accessed[row], pages.ram.npages) != 0, pages.ram)
        pace = pages.pace_of(row)
        if pace is not None:
            paced[:, row] = sum_by_block(pace, pages.ram)
    total = paced.sum()
    # Touches are no accesses to memory: how busy the whole range is, they do not tell.
    return paced * (touched.sum() / total) if total else touched


def copy_order(pages: RangePages, nodes: int, wanted: Indexes) -> Indexes:
    """Return ``wanted`` in the order in which copies of its pages are worth most; huge pages stay whole."""
    seen, heat = seen_pages(pages, nodes), block_heat(pages, nodes).heat.sum(axis=1)
    # Of a block's heat each page has its part, by how often it was touched.
    touches = _touches(pages, nodes, seen.windows)
    of_block = np.maximum(sum_by_block(touches, pages.ram), 1e-9)
    block = block_of_pages(wanted, pages.ram)
    windows = seen.windows[wanted].astype(np.float64)
    worth = heat[block] * touches[wanted] / of_block[block] * (windows + 1) / (windows + 2)
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


def _leader_of_pages(pages: RangePages, nodes: int) -> NodeIndexes:
    """Return the node that has nearly all heat of each page, by its block or by itself; -1 for none."""
    leader = _leader_by_pace(pages, nodes)
    if pages.counted:
        of_block = of_pages(_leader(block_heat(pages, nodes)), pages.ram)
        leader = np.where(of_block >= 0, of_block, leader).astype(np.int8)
    return leader


def _leader_by_pace(pages: RangePages, nodes: int) -> NodeIndexes:
    leader = np.full(pages.ram.npages, -1, np.int8)
    total, most = np.zeros(pages.ram.npages, np.float32), np.zeros(pages.ram.npages, np.float32)
    for node in range(nodes):
        pace = pages.pace_of(node)
        if pace is None:
            return leader
        total += pace
        leader[pace > most] = node
        np.maximum(most, pace, out=most)
    certain = seen_pages(pages, nodes).windows >= CERTAIN_WINDOWS
    return np.where(certain & (most >= SHARE * total), leader, -1).astype(np.int8)


def _leader(heat: Fused) -> NodeIndexes:
    """Return the node that has nearly all heat of each block, -1 where none has, or few samples say so."""
    total = heat.heat.sum(axis=1)
    samples = heat.samples.sum(axis=1)
    leads = (heat.heat.max(axis=1) >= SHARE * total) & (samples >= BLOCK_SAMPLES)
    return np.where(leads, heat.heat.argmax(axis=1), -1).astype(np.int8)


def _touches(pages: RangePages, nodes: int, windows: Bytes) -> npt.NDArray[np.float32]:
    """Return how often each page was touched: by its pace, or in how many windows where none is known."""
    total = np.zeros(pages.ram.npages, np.float32)
    for node in range(nodes):
        pace = pages.pace_of(node)
        if pace is None:
            return windows.astype(np.float32)
        total += pace
    return total
