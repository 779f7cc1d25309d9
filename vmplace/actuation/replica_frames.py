"""Which guest frames are pages of a VMM, and in which ranges is KVM asked for them?"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from vmplace.sampling.page_set import PageSet
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES
from vmplace.topology.placement import Slot

Gfns = npt.NDArray[np.uint64]
BLOCK = HUGE_BYTES // PAGE_BYTES
"""A huge page gets copies as a whole, if all its frames are asked for in one range."""


def frames_of(pages: PageSet, slots: Iterable[Slot]) -> Gfns:
    """Return the guest frames of the pages, ascending; pages that no slot maps are left out."""
    numbers = pages.pages()
    found = [np.zeros(0, np.uint64)]
    for slot in slots:
        at = numbers - slot.hva // PAGE_BYTES
        inside = (at >= 0) & (at < slot.npages)
        if not slot.as_id and inside.any():
            found.append(at[inside].astype(np.uint64) + np.uint64(slot.base_gfn))
    return np.sort(np.concatenate(found))


def pages_of(gfns: Gfns, slots: Iterable[Slot]) -> PageSet:
    """Return the pages of guest frames; frames that no slot has are left out."""
    found = [np.zeros(0, np.int64)]
    for slot in slots:
        at = gfns.astype(np.int64) - slot.base_gfn
        inside = (at >= 0) & (at < slot.npages)
        if not slot.as_id and inside.any():
            found.append(at[inside] + slot.hva // PAGE_BYTES)
    return PageSet.of(np.concatenate(found))


def runs_of(gfns: Gfns) -> tuple[Gfns, npt.NDArray[np.int32]]:
    """Return the first frame and the length of each run of ascending frames."""
    starts = np.flatnonzero(np.diff(gfns.astype(np.int64), prepend=-2) != 1)
    return gfns[starts], np.diff(starts, append=len(gfns)).astype(np.int32)


def affordable(gfns: Gfns, most: int) -> Gfns:
    """Return the first ``most`` frames, fewer where that would cut a whole block that is not the first."""
    if most >= len(gfns):
        return gfns
    blocks = gfns // np.uint64(BLOCK)
    start = int(np.searchsorted(blocks, blocks[most]))
    is_whole = np.count_nonzero(blocks == blocks[most]) == BLOCK
    return gfns[: start if start and is_whole else most]


def blocks_of(gfns: Gfns) -> tuple[Gfns, npt.NDArray[np.int32]]:
    """Return first frame and length of the ranges to ask for: whole blocks of 2 MiB, and single frames."""
    _, where, counts = np.unique(gfns // np.uint64(BLOCK), return_inverse=True, return_counts=True)
    whole = counts[where] == BLOCK
    first = ~whole | (gfns % np.uint64(BLOCK) == 0)
    return gfns[first], np.where(whole[first], BLOCK, 1).astype(np.int32)
