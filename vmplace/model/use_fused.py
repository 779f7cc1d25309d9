"""Who uses each page, and how surely, from several sources at once?

Accessed and dirty bits say who and whether written (use_by_bits.py), and how often where they are read
several times a window (page_rates.py); counted samples say how hot for whom, by 2 MiB block, as they are
few; hint faults say which pages are code.

1. Pages that are shared and written go to the node that has ``SHARE`` of their heat, if there is one: of the
   block's heat (fusion.py) where samples enough were counted, else of the page's own rate, if the page was
   touched in ``CERTAIN_WINDOWS`` windows.  Bits that are read once a window cannot tell a node that reads a
   page once from one that does nothing else.
2. Code counts as written only if a write was seen.  Pages around it that are written do not matter.

Source: Carrefour (ASPLOS'13, section 3.2); Kumar and Saxena, An Analysis of Shared Library Performance on
NUMA Architectures: code is fetched by all, never written, and one copy of it congests the node that has it.
"""

from dataclasses import replace

import numpy as np

from vmplace.model.fusion import Fused, fused
from vmplace.model.touched_pages import Floats, TouchedPages
from vmplace.model.use_by_bits import CERTAIN_WINDOWS, PageUse, page_use, seen_of, seen_written, written_of
from vmplace.sampling.page_arrays import Bools, NodeIndexes

BLOCK_SAMPLES = 8
"""Two nodes that share a block evenly are taken for one in 1 of 128 cases."""
SHARE = 0.95
NEIGHBOUR_BLOCKS = 16
"""Blocks that tell of each other: 32 MiB."""


def fused_use(pages: TouchedPages) -> PageUse:
    """Return what bits, samples and sights of code tell."""
    use = page_use(pages)
    if pages.text:
        use = replace(use, written=np.where(is_text(pages), seen_of(pages).written, use.written))
    led = use.shared & use.written
    if not led.any():
        return use
    leader = _leader_of_pages(pages)
    led &= leader >= 0
    return replace(use, owner=np.where(led, leader, use.owner).astype(np.int8), shared=use.shared & ~led)


def fused_written(pages: TouchedPages) -> Bools:
    """Return which entries count as written, or may: what ``fused_use`` tells of that, for less."""
    seen = seen_written(pages)
    written = written_of(pages, seen)
    if pages.text and pages.windows >= CERTAIN_WINDOWS:
        return np.where(is_text(pages), seen, written)
    return written


def block_heat(pages: TouchedPages) -> Fused:
    """Return the heat of each 2 MiB block [B, N], in touched pages: by bits, weighed by samples."""
    expected = _expected(pages)
    hits = pages.counted.hits
    known = hits.rows < pages.nodes
    where = pages.block_of(hits.pages[known]) * pages.nodes + hits.rows[known]
    # Sums of ones, as np.add.at makes them; of a million in a tenth of its time.
    samples = np.bincount(where, minlength=expected.size).reshape(expected.shape).astype(np.float64)
    return fused(expected, samples, pages.blocks // NEIGHBOUR_BLOCKS)


def _expected(pages: TouchedPages) -> Floats:
    """Return the touched pages of the windows by block and node, distributed by rate where it is known."""
    touched = np.stack([pages.by_block(row) for row in pages.touches[: pages.nodes]], axis=1)
    rates = [pages.rate_of(node) for node in range(pages.nodes)]
    working = np.stack(
        [np.zeros(len(touched)) if one is None else pages.by_block(one) for one in rates], axis=1
    )
    total = working.sum()
    # Touches are no accesses to memory: how busy the whole range is, they do not tell.
    return working * (touched.sum() / total) if total else touched


def is_text(pages: TouchedPages) -> Bools:
    """Return of which entries code was seen to be fetched."""
    text = np.zeros(pages.entries, np.bool_)
    for some in pages.text:
        text[some] = True
    return text


def _leader_of_pages(pages: TouchedPages) -> NodeIndexes:
    """Return the node that has nearly all heat of each entry, by its block or by itself; -1 for none."""
    leader = _leader_by_touch_rate(pages)
    if pages.counted:
        of_block = pages.of_block(_leader(block_heat(pages)))
        leader = np.where(of_block >= 0, of_block, leader).astype(np.int8)
    return leader


def _leader_by_touch_rate(pages: TouchedPages) -> NodeIndexes:
    leader = np.full(pages.entries, -1, np.int8)
    total, most = np.zeros(len(leader), np.float32), np.zeros(len(leader), np.float32)
    for node in range(pages.nodes):
        rate = pages.rate_of(node)
        if rate is None:
            return leader
        total += rate
        leader[rate > most] = node
        np.maximum(most, rate, out=most)
    certain = seen_of(pages).windows >= CERTAIN_WINDOWS
    return np.where(certain & (most >= SHARE * total), leader, -1).astype(np.int8)


def _leader(heat: Fused) -> NodeIndexes:
    """Return the node that has nearly all heat of each block, -1 where none has, or few samples say so."""
    total = heat.heat.sum(axis=1)
    samples = heat.samples.sum(axis=1)
    leads = (heat.heat.max(axis=1) >= SHARE * total) & (samples >= BLOCK_SAMPLES)
    return np.where(leads, heat.heat.argmax(axis=1), -1).astype(np.int8)
