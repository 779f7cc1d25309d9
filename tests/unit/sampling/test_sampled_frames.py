"""What samples of host frames say of a guest's pages, against each sample and page looked at by itself."""

import numpy as np
import numpy.typing as npt
import pytest

from vmplace.sampling.page_frames import FrameChunk
from vmplace.sampling.sampled_frames import Found, SampledFrames, add_bits, touched_by_row

ROWS = 3


def frames(*pfns: int) -> npt.NDArray[np.uint64]:
    return np.array(pfns, np.uint64)


def found(*samples: tuple[int, int, bool]) -> Found:
    """Return samples: frame, row, whether it was a store."""
    pfns, rows, stores = zip(*samples, strict=True)
    return frames(*pfns), np.array(rows, np.int8), np.array(stores, np.bool_)


FIRST = found((7, 0, False), (9, 1, True), (0, 0, False))
SECOND = found((7, 2, True), (7, 0, False), (40, 0, False))


def touched(chunk: FrameChunk, *parts: Found) -> list[list[list[int]]]:
    """Return by row which pages were touched, and which were written."""
    by_row = touched_by_row(chunk, SampledFrames.of(parts).hits(chunk), ROWS)
    return [[np.flatnonzero(row).tolist() for row in rows] for rows in by_row]


def test_each_sample_of_a_page_counts_for_the_node_of_its_cpu() -> None:
    # Page 2 is absent; no page of the guest has frame 9, and two have frame 7 (KSM).
    chunk = FrameChunk(first=100, pfns=frames(40, 7, 0, 7), heads=frames(0, 0, 0, 0))
    hits = SampledFrames.of([FIRST, SECOND]).hits(chunk)
    assert sorted(zip(hits.pages.tolist(), hits.rows.tolist(), strict=True)) == [
        (0, 0), (1, 0), (1, 0), (1, 2), (3, 0), (3, 0), (3, 2),
    ]  # fmt: skip
    assert hits.pages[hits.stores].tolist() == [1, 3]
    assert touched(chunk, FIRST, SECOND) == [[[0, 1, 3], [], [1, 3]], [[], [], [1, 3]]]


def test_a_sampled_tail_touches_its_whole_folio_and_no_page_that_is_absent() -> None:
    chunk = FrameChunk(first=0, pfns=frames(512, 513, 0, 40, 514), heads=frames(512, 512, 0, 40, 512))
    assert touched(chunk, found((513, 1, True))) == [[[], [0, 1, 4], []], [[], [0, 1, 4], []]]
    assert touched(chunk, found((41, 1, True))) == [[[]] * ROWS] * 2


def test_without_a_sample_nothing_was_touched() -> None:
    chunk = FrameChunk(first=0, pfns=frames(1, 0), heads=frames(1, 0))
    assert touched(chunk) == touched(chunk, found((0, 0, True))) == [[[]] * ROWS] * 2


@pytest.mark.parametrize("huge", [False, True])
def test_it_finds_what_a_look_at_each_page_finds(huge: bool) -> None:
    chance = np.random.default_rng(11)
    pfns = np.arange(512, 1536) if huge else chance.permutation(4096)[:1000]
    chunk = FrameChunk(0, pfns.astype(np.uint64), (pfns // 512 * 512 if huge else pfns).astype(np.uint64))
    samples = [(int(chance.integers(0, 4096)), int(chance.integers(0, ROWS)), bool(chance.random() < 0.3))
               for _ in range(400)]  # fmt: skip
    expected = [[set[int](), set[int](), set[int]()] for _ in range(2)]
    for frame, row, is_store in samples:
        head = frame // 512 * 512 if huge else frame
        mine = {
            at for at, pfn in enumerate(pfns.tolist())
            if pfn and frame in pfns and (pfn // 512 * 512 if huge else pfn) == head
        }  # fmt: skip
        expected[0][row] |= mine
        expected[1][row] |= mine if is_store else set()
    answer = touched(chunk, found(*samples))
    assert [[set(row) for row in rows] for rows in answer] == expected


@pytest.mark.parametrize("first", [0, 64, 70])
def test_bits_are_added_to_those_of_other_chunks(first: int) -> None:
    words = np.zeros((ROWS, 4), np.uint64)
    words[:, 0] = 1
    pages = np.zeros((ROWS, 100), np.bool_)
    pages[1, [0, 3, 99]] = True
    add_bits(words, pages, first)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    assert [np.flatnonzero(row).tolist() for row in bits] == [
        [0], sorted({0, first, first + 3, first + 99}), [0],
    ]  # fmt: skip
