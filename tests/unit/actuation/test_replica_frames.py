"""Which guest frames are which pages of the VMM?"""

from typing import Any

import numpy as np

from vmplace.actuation.replica_frames import affordable, blocks_of, frames_of, pages_of, runs_of
from vmplace.sampling.page_set import PageSet
from vmplace.topology.placement import Slot

HVA = 0x7F00_0000_0000


def gfns(runs: list[tuple[int, int]], slots: list[Slot]) -> list[int]:
    hva = np.array([HVA + first * 4096 for first, _ in runs], np.uint64)
    pages = PageSet.of_runs(hva, np.array([count for _, count in runs], np.int32))
    found: list[int] = frames_of(pages, slots).tolist()
    assert len(pages_of(frames_of(pages, slots), slots) - pages) == 0
    return found


def test_pages_map_through_the_slots_around_the_hole_below_4_gib() -> None:
    slots = [Slot(0, 16, HVA, 0), Slot(1 << 20, 16, HVA + 16 * 4096, 0)]
    assert gfns([(2, 2), (15, 2)], slots) == [2, 3, 15, 1 << 20]


def test_what_no_slot_maps_and_the_view_of_smm_are_left_out() -> None:
    assert gfns([(0, 4)], [Slot(8, 2, HVA, 0), Slot(100, 4, HVA, 1)]) == [8, 9]


def test_frames_are_found_in_the_vmm_again() -> None:
    slots = [Slot(0, 16, HVA, 0), Slot(1 << 20, 16, HVA + 16 * 4096, 0), Slot(0, 32, HVA + (1 << 30), 1)]
    held = np.array([2, 3, 14, 15, 16, 1 << 20, (1 << 20) + 99], np.uint64)
    assert (pages_of(held, slots).pages() - HVA // 4096).tolist() == [2, 3, 14, 15, 16]
    assert not len(pages_of(held[:0], slots)) and not len(pages_of(held, ()))


def test_frames_side_by_side_are_dropped_by_the_run() -> None:
    first, npages = runs_of(np.array([0, 1, 2, 7, 9, 10], np.uint64))
    assert first.tolist() == [0, 7, 9] and npages.tolist() == [3, 1, 2]
    assert not len(runs_of(np.zeros(0, np.uint64))[0])


def frames(*runs: tuple[int, int]) -> Any:
    return np.concatenate([np.arange(first, first + count, dtype=np.uint64) for first, count in runs])


def test_whole_blocks_are_asked_for_in_one_range_as_they_may_be_huge_pages() -> None:
    first, npages = blocks_of(frames((510, 2), (512, 512), (1024, 1), (2048, 512)))
    assert list(zip(first.tolist(), npages.tolist(), strict=True)) == [
        (510, 1),
        (511, 1),
        (512, 512),
        (1024, 1),
        (2048, 512),
    ]


def test_a_budget_cuts_a_whole_block_only_if_nothing_comes_before() -> None:
    asked = frames((510, 2), (512, 512), (1024, 9))
    assert [len(affordable(asked, most)) for most in (0, 1, 2, 3, 513, 514, 520, 1000)] == [
        0,
        1,
        2,
        2,
        2,
        514,
        520,
        523,
    ]
    assert len(affordable(frames((512, 512)), 100)) == 100
