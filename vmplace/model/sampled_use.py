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
import numpy.typing as npt

from vmplace.model.page_use import (
    CERTAIN_WINDOWS,
    HUGE_PAGES,
    PageUse,
    block_count,
    block_of_pages,
    by_block,
    of_pages,
    seen_pages,
)
from vmplace.model.pages import RangePages
from vmplace.sampling.sample import NodeIndexes, unpacked

BLOCK_SAMPLES = 8
"""Two nodes that share a block evenly are taken for one in 1 of 128 cases."""
RANGE_SAMPLES = 16
SHARE = 0.95
Samples = npt.NDArray[np.int64]
"""By [node, block]; the last row is of CPUs whose node is not known."""


def sampled_use(pages: RangePages, nodes: int) -> PageUse | None:
    """Return what the history of the range tells, or None where its source does not see nodes."""
    if not pages.history:
        return None
    ram, seen = pages.ram, seen_pages(pages, nodes)
    samples = _samples(pages, nodes)
    of_range = _leader(samples.sum(axis=1, keepdims=True), RANGE_SAMPLES)
    few = samples.sum(axis=0) < BLOCK_SAMPLES
    owner = of_pages(np.where(few, of_range, _leader(samples, BLOCK_SAMPLES)), ram)
    certain = (seen.windows >= CERTAIN_WINDOWS) & (seen.alone >= 0)
    owner = np.where(certain, seen.alone, owner).astype(np.int8)
    always, never = np.ones(ram.npages, np.bool_), np.zeros(ram.npages, np.bool_)
    return PageUse(owner, shared=owner < 0, written=always, in_use=seen.touched, unsure=never)


def _samples(pages: RangePages, nodes: int) -> Samples:
    """Return the samples by node and block: each of those that are kept, else by what pages had some."""
    ram = pages.ram
    samples = np.zeros((nodes + 1, block_count(ram)), np.int64)
    for hits in pages.counted:
        np.add.at(samples, (hits.rows, block_of_pages(hits.pages, ram)), 1)
    return samples if pages.counted else _sampled_pages(pages, samples)


def _sampled_pages(pages: RangePages, samples: Samples) -> Samples:
    """Add the pages that had samples, again in each window; a huge page counts once.

    Recordings hold no more than that.
    """
    ram = pages.ram
    for bits in pages.history:
        for row in range(len(samples)):
            samples[row] += by_block(unpacked(bits.accessed[row], ram.npages) != 0, ram)
    huge = pages.huge[: samples.shape[1]] != 0
    samples[:, huge] = -(-samples[:, huge] // HUGE_PAGES)
    return samples


def _leader(samples: Samples, least: int) -> NodeIndexes:
    """Return for each column the node that has nearly all samples, -1 where none has, or they are too few."""
    total = samples.sum(axis=0)
    best = samples[:-1].argmax(axis=0)
    most = samples[:-1].max(axis=0)
    return np.where((total >= least) & (most >= SHARE * total), best, -1).astype(np.int8)
