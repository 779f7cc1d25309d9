"""Pages that somebody holds are distinguished from busy ones by seconds, not by how short windows are."""

import numpy as np
import pytest

from vmplace.actuation.stubborn import StubbornPages

PAGE = np.array([4096], np.uint64)


def times(pages: StubbornPages, window_s: float, seconds: float) -> list[float]:
    """Return when a page that is always busy is tried, in seconds."""
    tried = []
    for window in range(round(seconds / window_s)):
        pages.start_window(1e6 + window * window_s)
        if not pages.pinned(PAGE)[0]:
            tried.append(window * window_s)
            pages.busy(PAGE)
    return tried


def test_a_page_that_is_busy_three_times_is_tried_again_after_64_seconds():
    assert times(StubbornPages(), 1.0, 140) == [0, 1, 2, 66, 130]


@pytest.mark.parametrize("window_s", [0.25, 0.5, 1.02])
def test_short_windows_call_a_page_pinned_no_sooner_and_try_it_no_sooner(window_s: float):
    tried = times(StubbornPages(), window_s, 100)
    gaps = np.diff(tried)
    assert abs(tried[int(gaps.argmax())] - 2) <= 0.05
    assert abs(gaps.max() - 64) <= max(window_s, 0.5)


def test_a_page_that_moved_after_all_is_forgotten():
    pages = StubbornPages()
    times(pages, 1.0, 10)
    pages.moved(PAGE)
    assert not pages.pinned(PAGE).any()
