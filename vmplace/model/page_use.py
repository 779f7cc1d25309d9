"""Who uses each page: one node alone, or several, and does anybody write?  From the last windows of a source
that sees nodes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.model.pages import RangePages
from vmplace.sampling.sample import Bytes, NodeIndexes, unpacked
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES

Bools = npt.NDArray[np.bool_]
HUGE_PAGES = HUGE_BYTES // PAGE_BYTES
WRITTEN_WINDOWS = 2


@dataclass(frozen=True)
class PageUse:
    """One entry per 4 KiB page; a page in a huge page has the answer of the whole.

    ``owner``: index of the one node that touched the page, -1 where none or several did.  ``shared``: several
    nodes did, or one that is not known.  ``written``: writes were seen in two windows, or could not be told.
    """

    owner: NodeIndexes
    shared: Bools
    written: Bools


def page_use(pages: RangePages, nodes: int) -> PageUse | None:
    """Return what the history of the range tells, or None where its source does not see nodes."""
    if not pages.history:
        return None
    npages = pages.ram.npages
    touched = np.bitwise_or.reduce([bits.accessed for bits in pages.history])
    mask = np.zeros(npages, np.uint32)
    for row in range(nodes + 1):
        mask |= unpacked(touched[row], npages).astype(np.uint32) << np.uint32(row)
    written = _written(pages, npages)
    _unite_huge(pages, mask)
    _unite_huge(pages, written)
    owner = np.full(npages, -1, np.int8)
    for index in range(nodes):
        owner[mask == 1 << index] = index
    return PageUse(owner, (mask != 0) & (owner < 0), written != 0)


def _written(pages: RangePages, npages: int) -> Bytes:
    """Return 1 for pages seen written in two windows: one may be KVM's own doing, as it maps a page."""
    windows = [bits.written for bits in pages.history]
    count = np.zeros(npages, np.uint8)
    for rows in windows:
        count += 1 if rows is None else unpacked(np.bitwise_or.reduce(rows, axis=0), npages)
    return (count >= min(WRITTEN_WINDOWS, len(windows))).astype(np.uint8)


def _unite_huge(pages: RangePages, value: Bytes | npt.NDArray[np.uint32]) -> None:
    """Give all pages of each huge page the OR of theirs, in place."""
    offset = pages.ram.hva % HUGE_BYTES // PAGE_BYTES
    for block in np.flatnonzero(pages.huge).tolist():
        inside = slice(max(block * HUGE_PAGES - offset, 0), (block + 1) * HUGE_PAGES - offset)
        value[inside] = np.bitwise_or.reduce(value[inside])
