"""How often was each entry accessed from each node, by the samples that a source took?

Few samples say little of a page: it is drawn towards those around it, of the same place, as far as chance
explains the difference (credibility.py).
"""

from collections.abc import Sequence

import numpy as np

from vmplace.model.credibility import credible
from vmplace.model.metrics import Matrix
from vmplace.model.touched_pages import TouchedPages
from vmplace.sampling.page_arrays import Indexes
from vmplace.sampling.sample import NodeHits

NEAR_PAGES = 16
"""64 KiB: pages that are taken to be more alike than those of a block (credibility.py)."""


def _counts(pages: TouchedPages, windows: Sequence[NodeHits]) -> Matrix:
    """Return how many samples there were in these windows, by entry and node [E, N]."""
    counts = np.zeros((len(pages.heat), pages.nodes))
    for hits in windows:
        known = hits.rows < pages.nodes
        places = hits.pages[known] * pages.nodes + hits.rows[known]
        counts += np.bincount(places, minlength=counts.size).reshape(counts.shape)
    return counts


def believed(pages: TouchedPages, windows: Sequence[NodeHits], units: Sequence[Indexes]) -> Matrix:
    """Return what the samples of these windows imply: each entry's own as far as chance explains no more."""
    counts = _counts(pages, windows)
    return credible(counts, counts, units)


def sample_units(pages: TouchedPages) -> list[Indexes]:
    """Return the numbers of the units that tell of each entry: of a few pages around it, and of its block."""
    every = np.arange(len(pages.heat))
    block, near = pages.block_of(every), every // NEAR_PAGES
    place = pages.node_index.astype(np.intp) + 1
    within = _numbered(block * (pages.nodes + 1) + place)
    inner = _numbered((near * len(pages.blocks) + block) * (pages.nodes + 1) + place)
    return [inner, within]


def _numbered(keys: Indexes) -> Indexes:
    numbers: Indexes = np.unique(keys, return_inverse=True)[1]
    return numbers
