"""Which guest frames are the pages of a replication?"""

from typing import Any

import numpy as np

from vmplace.actuation.frame_sets import FrameSet, Gfns
from vmplace.actuation.replica_frames import (
    MOST_DOUBTED,
    ReplicatedFrames,
    affordable,
    blocks_of,
    frames_of,
    runs_in,
    runs_of,
)
from vmplace.policy.plan import Collapse, Replication
from vmplace.topology.placement import Slot

HVA = 0x7F00_0000_0000


def gfns(runs: list[tuple[int, int]], slots: list[Slot]) -> list[int]:
    hva = np.array([HVA + first * 4096 for first, _ in runs], np.uint64)
    npages = np.array([count for _, count in runs], np.int32)
    wanted = Replication("db1", hva, npages, (0, 1), "reason")
    found: list[int] = frames_of(wanted, slots).frames().tolist()
    return found


def missing(held: ReplicatedFrames, frames: Gfns) -> Gfns:
    return held.missing(FrameSet.of(frames)).frames()


def take(held: ReplicatedFrames, frames: Gfns) -> list[int]:
    """Forget those of the frames that have copies, and return them."""
    taken = held.among(frames, frames + np.uint64(1))
    held.forget(taken)
    found: list[int] = taken.frames().tolist()
    return found


def test_pages_map_through_the_slots_around_the_hole_below_4_gib() -> None:
    slots = [Slot(0, 16, HVA, 0), Slot(1 << 20, 16, HVA + 16 * 4096, 0)]
    assert gfns([(2, 2), (15, 2)], slots) == [2, 3, 15, 1 << 20]


def test_what_no_slot_maps_and_the_view_of_smm_are_left_out() -> None:
    assert gfns([(0, 4)], [Slot(8, 2, HVA, 0), Slot(100, 4, HVA, 1)]) == [8, 9]


def test_frames_that_have_copies_are_asked_for_again_once_kvm_has_dropped_some() -> None:
    held, frames = ReplicatedFrames(), np.array([3, 5, 9], np.uint64)
    done = np.array([9, 3], np.uint64)
    assert held.note(frames, done) == 2
    asked = []
    for dropped in (0, 1, 1, 3):
        held.note_drops(dropped)
        asked.append(missing(held, frames).tolist())
        held.note(np.array(asked[-1], np.uint64), done)
    assert asked == [[5], [3, 5, 9], [5], [3, 5, 9]]


def test_where_one_more_node_is_to_have_copies_all_frames_are_asked_for_again_and_keep_what_they_have() -> (
    None
):
    held, frames = ReplicatedFrames(), np.array([3, 5, 9], np.uint64)
    asked = []
    for nodes in (0b011, 0b011, 0b111, 0b011, 0b111):
        held.note_nodes(nodes)
        asked.append(missing(held, frames).tolist())
        held.note(missing(held, frames), frames)
    assert asked == [[3, 5, 9], [], [3, 5, 9], [], [3, 5, 9]]
    # Two get none on the third node; one of them is not known to have any.
    take(held, frames[:1])
    held.note(frames, frames[2:])
    assert missing(held, frames).tolist() == [3, 5] and take(held, frames) == [5, 9]


def test_frames_in_doubt_are_asked_for_some_at_a_time() -> None:
    held, frames, counts = ReplicatedFrames(), np.arange(2 * MOST_DOUBTED + 1, dtype=np.uint64), []
    held.note(frames, frames)
    held.note_drops(1)
    for _ in range(4):
        asked = missing(held, frames)
        held.note(asked, asked)
        counts.append(len(asked))
    assert counts == [MOST_DOUBTED, MOST_DOUBTED, 1, 0]


def test_frames_in_doubt_are_so_until_they_were_asked_for() -> None:
    held, frames = ReplicatedFrames(), np.array([3, 5, 9], np.uint64)
    held.note(frames, frames)
    held.note_drops(1)
    # The budget pays for none of them, then for one, which turns out to have lost its copies.
    held.note(missing(held, frames)[:0], frames[:0])
    held.note(missing(held, frames)[:1], frames[:0])
    assert missing(held, frames).tolist() == [3, 5, 9]
    held.note(frames, frames)
    assert missing(held, frames).tolist() == []


def test_all_frames_in_doubt_come_to_their_turn_though_copies_are_dropped_each_time() -> None:
    held, frames, asked = ReplicatedFrames(), np.arange(3 * MOST_DOUBTED, dtype=np.uint64), set[int]()
    held.note(frames, frames)
    first = 0
    for dropped in range(1, 7):
        held.note_drops(dropped)
        # Not all of them are paid for.
        part = held.missing(FrameSet.of(frames)).in_turn(first, MOST_DOUBTED // 2)
        held.note(part, part)
        asked, first = asked | set(part.tolist()), int(part[-1]) + 1
    assert len(asked) == len(frames)


def test_frames_that_have_none_for_sure_count_anew() -> None:
    held, frames, none = ReplicatedFrames(), np.array([3, 5], np.uint64), np.zeros(0, np.uint64)
    bare = frames[1:]
    new = [held.note(frames, frames), held.note(frames, frames[:1], none, bare), held.note(frames, frames)]
    assert new == [2, 0, 1]


def test_frames_whose_copies_were_dropped_are_held_no_more() -> None:
    held, frames = ReplicatedFrames(), np.array([3, 5, 9], np.uint64)
    held.note(frames, frames)
    assert take(held, np.array([4, 5, 9], np.uint64)) == [5, 9]
    assert held.any() and take(held, frames) == [3] and not held.any()


def test_frames_held_are_found_by_runs_of_pages_however_long_these_are() -> None:
    slots = [Slot(0, 16, HVA, 0), Slot(0, 16, HVA, 1), Slot(1 << 20, 1 << 40, HVA + 16 * 4096, 0)]
    held, some = ReplicatedFrames(), frames((3, 1), (5, 1), (15, 1), (1 << 20, 2), ((1 << 20) + 9, 1))
    assert held.among(*runs_in(dropped((0, 1 << 30)), slots)).frames().tolist() == []
    held.note(some, some)
    for runs, found in (
        (((0, 1 << 30),), some.tolist()),
        (((15, 2), (0, 4)), [3, 15, 1 << 20]),
        (((4, 1), (6, 9), (18, 7)), []),
        (((5, 1), (25, 1)), [5, (1 << 20) + 9]),
        ((), []),
    ):
        assert held.among(*runs_in(dropped(*runs), slots)).frames().tolist() == found


def dropped(*runs: tuple[int, int]) -> Collapse:
    hva = np.array([HVA + first * 4096 for first, _ in runs], np.uint64)
    return Collapse("db1", hva, np.array([count for _, count in runs], np.int32), "test")


def test_frames_side_by_side_are_dropped_by_the_run() -> None:
    first, npages = runs_of(np.array([0, 1, 2, 7, 9, 10], np.uint64))
    assert first.tolist() == [0, 7, 9] and npages.tolist() == [3, 1, 2]
    assert not len(runs_of(np.zeros(0, np.uint64))[0])


def frames(*runs: tuple[int, int]) -> Any:
    each = [np.arange(first, first + count, dtype=np.uint64) for first, count in runs]
    return np.concatenate([np.zeros(0, np.uint64), *each])


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
    # In turn: what comes first may have the higher numbers.
    assert [len(affordable(frames((1024, 9), (0, 512)), most)) for most in (8, 9, 300, 521)] == [8, 9, 9, 521]
