"""Who uses each page, if the source saw a few of the accesses only?

A page that was not sampled need not be idle, and one that was sampled for one node may be used by others,
too.  So pages are judged together, as far as there are samples enough.

1. A page that was sampled in ``CERTAIN_WINDOWS`` windows for one node, and for no other, is that node's.
2. A 2 MiB block with ``BLOCK_SAMPLES`` is the node's that has ``SHARE`` of them, or shared.
3. A block with fewer goes with its range: to the node that has ``SHARE`` of at least ``RANGE_SAMPLES``.
4. All else counts as shared, by nodes that are not known, and as written: a write need not be sampled.

Source: Carrefour (ASPLOS'13), section 3.2.2, decides per page; it has the samples of machines that run real
programs for seconds.
Limits: a block that two nodes use, each its own pages of, is shared here.
"""

import numpy as np

from vmplace.model.touched_pages import Floats, TouchedPages
from vmplace.model.use_by_bits import CERTAIN_WINDOWS, PageUse, seen_of
from vmplace.sampling.page_arrays import NodeIndexes

BLOCK_SAMPLES = 8
"""Two nodes that share a block evenly are taken for one in 1 of 128 cases."""
RANGE_SAMPLES = 16
SHARE = 0.95


def sampled_use(pages: TouchedPages) -> PageUse:
    """Return what samples tell of who uses the pages."""
    seen, samples = seen_of(pages), _samples(pages)
    of_range = _leader(samples.sum(axis=1, keepdims=True), RANGE_SAMPLES)
    few = samples.sum(axis=0) < BLOCK_SAMPLES
    owner = pages.of_block(np.where(few, of_range, _leader(samples, BLOCK_SAMPLES)))
    certain = (seen.windows >= CERTAIN_WINDOWS) & (seen.alone >= 0)
    owner = np.where(certain, seen.alone, owner).astype(np.int8)
    always, never = np.ones(len(owner), np.bool_), np.zeros(len(owner), np.bool_)
    return PageUse(owner, shared=owner < 0, written=always, in_use=seen.touched, unsure=never)


def _samples(pages: TouchedPages) -> Floats:
    """Return the samples by node [N + 1] and block: each of those that are kept, else by what pages had some.

    Recordings hold no more than that: a page counts again in each window, and a huge page once.
    """
    if not pages.counted:
        return np.stack([pages.by_block(row, huge_pages=1) for row in pages.touches])
    samples = np.zeros((pages.nodes + 1, len(pages.blocks)))
    for hits in pages.counted:
        np.add.at(samples, (hits.rows, pages.block_of(hits.pages)), 1)
    return samples


def _leader(samples: Floats, least: int) -> NodeIndexes:
    """Return for each column the node that has nearly all samples, -1 where none has, or they are too few."""
    total = samples.sum(axis=0)
    best = samples[:-1].argmax(axis=0)
    most = samples[:-1].max(axis=0)
    return np.where((total >= least) & (most >= SHARE * total), best, -1).astype(np.int8)
