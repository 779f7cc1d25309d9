"""Do sets of guest frames hold what plain sets do, and in how much memory?"""

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from vmplace.actuation.frame_sets import FULL, SPAN, FrameSet, Gfns, united

EDGES = (0, 1, 63, 64, 65, SPAN - 1, SPAN, SPAN + 1, 3 * SPAN - 64, 3 * SPAN, 1 << 34)


def gfns_of(frames: set[int]) -> Gfns:
    return np.array(sorted(frames), np.uint64)


def samples() -> Iterator[tuple[set[int], set[int]]]:
    """Yield pairs of sets: few frames, many, and those at the ends of words and pieces."""
    random = np.random.default_rng(1)
    for number in (0, 1, 10, 1000):
        one, other = (set(random.integers(0, 3 * SPAN, number).tolist()) for _ in range(2))
        yield one | set(EDGES[::2]), other | set(EDGES[1::2]) | one
        yield one, other


def test_sets_of_frames_unite_meet_and_differ_as_sets_do() -> None:
    for one, other in samples():
        mine, others = FrameSet.of(gfns_of(one)), FrameSet.of(gfns_of(other))
        for found, expected in (
            (mine | others, one | other),
            (mine & others, one & other),
            (mine - others, one - other),
            (united(mine, others), one | other),
            (mine & mine, one),
            (mine - mine, set[int]()),
        ):
            assert found.frames().tolist() == sorted(expected)
            assert len(found) == len(expected) and bool(found) == bool(expected)
        assert mine.has(gfns_of(other)).tolist() == [gfn in one for gfn in sorted(other)]


def test_frames_are_listed_in_turn_up_to_a_number() -> None:
    for one, _ in samples():
        frames, ordered = FrameSet.of(gfns_of(one)), sorted(one)
        for first in (*EDGES, *ordered[:3]):
            turn = [gfn for gfn in ordered if gfn >= first] + [gfn for gfn in ordered if gfn < first]
            for most in (0, 1, 5, len(one), 2 * len(one)):
                assert frames.in_turn(first, most).tolist() == turn[:most]


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [(5, 5), (9, 3)],
        [(0, 1), (1, 3), (63, 65)],
        # In any order, in each other, and over the ends of pieces.
        [(SPAN - 2, SPAN + 2), (4, 9), (2, 30), (6, 7), (29, 31)],
        [(SPAN, 2 * SPAN), (3 * SPAN - 1, 3 * SPAN)],
        [(10, 3 * SPAN + 10)],
    ],
)
def test_runs_hold_all_their_frames(runs: list[tuple[int, int]]) -> None:
    first, end = (np.array([run[at] for run in runs], np.uint64) for at in (0, 1))
    expected = {gfn for a, b in runs for gfn in range(a, b)}
    found = FrameSet.of_runs(first, end)
    assert found.frames().tolist() == sorted(expected) and len(found) == len(expected)


def test_a_tebibyte_takes_the_memory_of_one_gibibyte_if_it_is_whole_and_little_if_it_is_not() -> None:
    first, end = np.array([0], np.uint64), np.array([1 << 28], np.uint64)
    tracemalloc.start()
    whole = FrameSet.of_runs(first, end)
    rest = whole - FrameSet.of(np.array([12345], np.uint64))
    found = rest.in_turn(12345, 1000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found[0] == 12346 and len(rest) == (1 << 28) - 1
    assert most < 40 << 20 and all(bits is FULL for bits in whole._pieces.values())
