"""Pages counted and stepped by what early readings showed, against a plain loop over pages."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmplace import native

Codes = npt.NDArray[np.uint8]
Answers = npt.NDArray[np.intp]


@st.composite
def pages(draw: st.DrawFn) -> tuple[Codes, Answers, int]:
    """Return codes, the first reading that showed each page, and how many readings there were.

    Runs of like pages, some longer than a word, as huge pages and idle ones make them.
    """
    readings = draw(st.integers(1, 5))
    run = st.tuples(st.integers(0, 255), st.integers(0, readings), st.integers(1, 200))
    runs = draw(st.lists(run, min_size=1, max_size=6))
    lengths = [length for _, _, length in runs]
    codes = np.repeat([code for code, _, _ in runs], lengths).astype(np.uint8)
    return codes, np.repeat([first for _, first, _ in runs], lengths), readings


def shown(first: Answers, readings: int) -> npt.NDArray[np.uint64]:
    """Return the bitmaps: each reading shows what it and those before it were the first to show."""
    rows = np.zeros((readings, -(-len(first) // 64) * 64), np.uint8)
    rows[:, : len(first)] = first <= np.arange(readings)[:, None]
    return np.packbits(rows, axis=1, bitorder="little").view(np.uint64)


@given(pages())
def test_pages_are_counted_by_code_and_answer(some: tuple[Codes, Answers, int]) -> None:
    codes, first, readings = some
    counts, wanted = (np.ones((256, readings + 1), np.uint64) for _ in range(2))
    native.touch_rate_count(codes, shown(first, readings), counts)
    for code, answer in zip(codes.tolist(), first.tolist(), strict=True):
        wanted[code, answer] += np.uint64(1)
    assert (counts == wanted).all()


@given(pages())
def test_each_page_takes_the_code_that_the_table_has_for_it(some: tuple[Codes, Answers, int]) -> None:
    codes, first, readings = some
    table = np.random.default_rng(1).integers(0, 256, (256, readings + 1)).astype(np.uint8)
    wanted = [table[code, answer] for code, answer in zip(codes.tolist(), first.tolist(), strict=True)]
    native.touch_rate_step(codes, shown(first, readings), table)
    assert codes.tolist() == wanted


@pytest.mark.parametrize(("words", "answers"), [(3, 4), (0, 1), (4, 2), (4, 4)])
def test_shapes_that_do_not_fit_are_refused(words: int, answers: int) -> None:
    """For 128 pages, two words a reading, two readings need a table of three answers."""
    codes, table = np.zeros(128, np.uint8), np.zeros((256, answers), np.uint8)
    with pytest.raises(ValueError, match="need a row"):
        native.touch_rate_step(codes, np.zeros(words, np.uint64), table)


def test_no_pages_are_refused() -> None:
    with pytest.raises(ValueError, match="need a row"):
        native.touch_rate_count(np.zeros(0, np.uint8), np.zeros(0, np.uint64), np.zeros(256, np.uint64))
