"""Which vCPUs share memory, and do they really, or only the huge page it is in?

1. Sampled accesses are counted by sub-block (64 KiB) and vCPU.
2. Two vCPUs share as much as both access the same sub-blocks, as kMAF counts it (PACT'14, section 3.4.1).
3. A huge page that several nodes access although no sub-block of it has accesses from more than one is
   shared falsely: split, its parts can each go to who uses them.

Limits: hint faults are records of one access per period and page, so counts tell of sharing, not of heat.
"""

import numpy as np
import numpy.typing as npt

from vmplace.model.metrics import Matrix
from vmplace.sampling.page_arrays import Bytes
from vmplace.sampling.sample import RangeSample, VcpuHits
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, RamRange

SUB_BLOCK_PAGES = 16
SUB_BLOCKS_PER_HUGE = HUGE_BYTES // PAGE_BYTES // SUB_BLOCK_PAGES
Indexes = npt.NDArray[np.int64]


def sub_block_use(ram: RamRange, hits: VcpuHits, vcpu_ids: tuple[int, ...]) -> Matrix:
    """Return the hits by sub-block and vCPU [S, V]; those of vCPUs that are not listed are left out.

    Sub-blocks are counted from ``ram.hva`` rounded down to 2 MiB, so that each is in one huge page.
    """
    blocks = -(-(_offset(ram) + ram.npages) // (SUB_BLOCK_PAGES * SUB_BLOCKS_PER_HUGE)) * SUB_BLOCKS_PER_HUGE
    columns = {vcpu: column for column, vcpu in enumerate(vcpu_ids)}
    column = np.array([columns.get(vcpu, -1) for vcpu in hits.vcpus.tolist()], np.int64)
    known = column >= 0
    where = (hits.pages[known] + _offset(ram)) // SUB_BLOCK_PAGES * len(vcpu_ids) + column[known]
    counts = np.bincount(where, minlength=blocks * len(vcpu_ids)).astype(np.float64)
    return counts.reshape(blocks, len(vcpu_ids))


def vcpu_sharing(use: Matrix) -> Matrix:
    """Return, of a use [S, V] of sub-blocks or pages, how much each two vCPUs access the same ones [V, V].

    Of a vCPU with itself: 0.
    """
    touched = use[use.any(axis=1)]
    share = touched / np.maximum(touched.sum(axis=1, keepdims=True), 1.0)
    matrix: Matrix = touched.T @ share
    return (matrix + matrix.T) / 2 * (1 - np.eye(use.shape[1]))


def falsely_shared(use: Matrix, huge: Bytes, vcpu_nids: tuple[int, ...]) -> Indexes:
    """Return the huge pages (indexes as in ``RangeSample.huge``) that nodes share, but no sub-block of them.

    ``vcpu_nids``: the node each vCPU of ``use`` is on.
    """
    nids = sorted(set(vcpu_nids))
    by_node = np.stack([use[:, np.array(vcpu_nids) == nid].any(axis=1) for nid in nids], axis=1)
    of_huge = by_node.reshape(len(huge), SUB_BLOCKS_PER_HUGE, len(nids))
    by_several = of_huge.any(axis=1).sum(axis=1) > 1
    truly = (of_huge.sum(axis=2) > 1).any(axis=1)
    return np.flatnonzero((huge != 0) & by_several & ~truly)


def guest_sharing(ranges: tuple[RangeSample, ...], vcpu_ids: tuple[int, ...]) -> Matrix | None:
    """Return the sharing of all ranges of a sample, None from a source that does not see vCPUs."""
    parts = [
        vcpu_sharing(sub_block_use(sample.ram, sample.by_vcpu, vcpu_ids))
        for sample in ranges
        if sample.by_vcpu is not None
    ]
    total: Matrix | None = np.sum(parts, axis=0) if parts else None
    return total


def _offset(ram: RamRange) -> int:
    return ram.hva % HUGE_BYTES // PAGE_BYTES
