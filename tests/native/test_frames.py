"""The idle bitmap and frame flags, laid out in ordinary files as the kernel documents them."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from vmplace import native

FRAMES = 1 << 20
LRU, HEAD, TAIL, HUGETLB, ZERO = (np.uint64(1 << bit) for bit in (5, 15, 16, 17, 24))


@pytest.fixture
def bitmap(tmp_path: Path) -> Iterator[int]:
    """Give a bitmap file of ``FRAMES`` frames, none of them idle."""
    path = tmp_path / "bitmap"
    path.write_bytes(bytes(FRAMES // 8))
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def idle_frames(fd: int) -> set[int]:
    bits = np.unpackbits(np.frombuffer(os.pread(fd, FRAMES // 8, 0), np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def pfns_of(*pfns: int) -> npt.NDArray[np.uint64]:
    return np.array(pfns, np.uint64)


@pytest.mark.parametrize("seed", range(8))
def test_exactly_the_named_frames_are_marked_in_any_order(bitmap: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # The kernel adds to a word what is written to it, a file does not: each word is to be visited once.
    pfns = np.unique(rng.integers(0, FRAMES, 60000)).astype(np.uint64)
    shuffled = rng.permutation(pfns)
    by_word = shuffled[np.argsort(shuffled // np.uint64(64), kind="stable")]
    pfns = (pfns, np.ascontiguousarray(pfns[::-1]), by_word)[seed % 3]
    native.idle_mark(bitmap, pfns)
    assert idle_frames(bitmap) == set(pfns.tolist()) - {0}


@pytest.mark.parametrize("seed", range(8))
def test_exactly_the_frames_that_are_not_idle_were_touched(bitmap: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, FRAMES).astype(np.uint8)
    os.pwrite(bitmap, np.packbits(bits, bitorder="little").tobytes(), 0)
    pfns = np.concatenate([rng.integers(1, FRAMES, 4000), np.arange(9, 70000)]).astype(np.uint64)
    accessed = np.full(len(pfns), 9, np.uint8)
    assert native.idle_collect(bitmap, pfns, accessed) == (bits[pfns] == 0).sum()
    assert (accessed == (bits[pfns] == 0)).all()


def test_frame_0_is_neither_marked_nor_touched(bitmap: int) -> None:
    accessed = np.full(2, 9, np.uint8)
    assert native.idle_mark(bitmap, pfns_of(0, 0)) == 0
    assert native.idle_collect(bitmap, pfns_of(0, 5), accessed) == 1
    assert accessed.tolist() == [0, 1]


def test_frames_behind_the_last_one_are_not_called_touched(bitmap: int) -> None:
    accessed = np.full(1, 9, np.uint8)
    assert native.idle_collect(bitmap, pfns_of(FRAMES + 64), accessed) == 0


def test_adjacent_words_are_one_access_and_others_are_left_alone(bitmap: int) -> None:
    assert native.idle_mark(bitmap, pfns_of(0, 64, 128, 127, 640)) == 3


@pytest.fixture
def kpageflags(tmp_path: Path) -> Iterator[int]:
    """Give flags of 4096 frames: small pages, one huge page at 512, a 64 KiB folio at 1040, oddities."""
    flags = np.full(4096, LRU)
    flags[512] = LRU | HEAD
    flags[513:1024] = LRU | TAIL
    flags[1040] = LRU | HEAD
    flags[1041:1056] = LRU | TAIL
    flags[2000], flags[2001], flags[2002] = LRU | ZERO, HUGETLB | HEAD, np.uint64(0)
    path = tmp_path / "kpageflags"
    path.write_bytes(flags.tobytes())
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def heads_of(fd: int, *pfns: int) -> tuple[list[int], list[int]]:
    array, heads = pfns_of(*pfns), np.zeros(len(pfns), np.uint64)
    native.folio_heads(fd, array, heads)
    return heads.tolist(), array.tolist()


@pytest.mark.parametrize(
    ("pfns", "heads"),
    [
        ([7, 8, 9], [7, 8, 9]),
        (list(range(512, 1024)), [512] * 512),
        ([511, 512, 513], [511, 512, 512]),
        (
            list(range(448, 1088)),
            [*range(448, 512), *[512] * 512, *range(1024, 1040), *[1040] * 16, *range(1056, 1088)],
        ),
        (list(range(513, 1024)), [512] * 511),
        ([700, 1023, 1024], [512, 512, 1024]),
        ([1055, 1056], [1040, 1056]),
        (list(range(1024, 1536)), [*range(1024, 1040), *[1040] * 16, *range(1056, 1536)]),
        ([0, 5, 0], [0, 5, 0]),
    ],
    ids=[
        "small",
        "huge",
        "into huge",
        "across huge",
        "tails only",
        "huge tails",
        "64K tail",
        "64K inside",
        "absent",
    ],
)
def test_each_frame_gets_the_head_of_its_folio(kpageflags: int, pfns: list[int], heads: list[int]) -> None:
    assert heads_of(kpageflags, *pfns)[0] == heads


def test_frames_that_cannot_answer_have_no_head(kpageflags: int) -> None:
    assert heads_of(kpageflags, 2000, 2001, 5000) == ([0, 0, 0], [0, 2001, 0])
