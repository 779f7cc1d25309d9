"""Sharing among vCPUs, from sampled accesses to declared pages."""

import numpy as np

from vmplace.model.vcpu_sharing import falsely_shared, guest_sharing, sub_block_use, vcpu_sharing
from vmplace.sampling.sample import RangeSample, VcpuHits
from vmplace.topology.guest import Movability, RamRange

BASE = 1 << 30
NPAGES = 1024
IDS = (0, 1, 5)


def ram(hva: int = BASE) -> RamRange:
    return RamRange(hva, NPAGES, None, 4096, Movability.MOVABLE, "test")


def hits(*touched: tuple[int, int]) -> VcpuHits:
    """Return hits of (vCPU, page)."""
    vcpus, pages = np.array(touched, np.int64).reshape(-1, 2).T
    return VcpuHits(pages, vcpus, np.zeros(len(pages), np.bool_))


def test_hits_are_counted_by_64_kib_and_vcpu() -> None:
    use = sub_block_use(ram(), hits((0, 0), (0, 15), (5, 16), (1, 1023), (9, 3)), IDS)
    assert use.shape == (64, 3)
    assert use[0].tolist() == [2, 0, 0]
    assert use[1].tolist() == [0, 0, 1]
    assert use[63].tolist() == [0, 1, 0]
    assert use.sum() == 4


def test_sub_blocks_are_aligned_to_huge_pages() -> None:
    use = sub_block_use(ram(BASE + 511 * 4096), hits((0, 0), (0, 1)), IDS)
    assert len(use) == 96
    assert use[31, 0] == use[32, 0] == 1


def test_vcpus_share_what_both_touch() -> None:
    sharing = vcpu_sharing(sub_block_use(ram(), hits((0, 0), (1, 3), (5, 100), (5, 101)), IDS))
    assert sharing[0, 1] == sharing[1, 0] == 0.5
    assert not sharing[2].any() and not np.diag(sharing).any()


def test_neighbours_in_a_huge_page_share_nothing() -> None:
    assert not vcpu_sharing(sub_block_use(ram(), hits((0, 0), (1, 16), (5, 32)), IDS)).any()


def test_a_huge_page_is_shared_falsely_only_if_no_part_of_it_is_shared() -> None:
    apart = sub_block_use(ram(), hits((0, 0), (1, 300)), IDS)
    together = sub_block_use(ram(), hits((0, 0), (1, 300), (1, 5)), IDS)
    huge = np.ones(2, np.uint8)
    assert falsely_shared(apart, huge, (0, 1, 1)).tolist() == [0]
    assert falsely_shared(together, huge, (0, 1, 1)).tolist() == []
    assert falsely_shared(apart, huge, (2, 2, 2)).tolist() == []
    assert falsely_shared(apart, np.zeros(2, np.uint8), (0, 1, 1)).tolist() == []


def test_a_source_without_vcpus_tells_no_sharing() -> None:
    blind = RangeSample(ram(), np.zeros(NPAGES, np.uint8), np.zeros(NPAGES, np.int8), np.zeros(2, np.uint8))
    assert guest_sharing((blind,), IDS) is None
