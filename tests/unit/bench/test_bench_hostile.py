"""The programs that mislead on purpose do what their kinds say."""

import numpy as np
import pytest

from bench.bench_hostile import KINDS, VISITED, drawn, intensity, records, users

PAGES, THREADS, TURNS = 4000, 8, 40


def test_private_pages_are_visited_by_others_now_and_then() -> None:
    chance = np.random.default_rng(1)
    own = np.arange(PAGES) * THREADS // PAGES
    visits = [(users("visited", PAGES, THREADS, turn, chance)[0] != own).mean() for turn in range(TURNS)]
    # One visitor in eight is the owner.
    assert np.mean(visits) == pytest.approx(VISITED * (1 - 1 / THREADS), rel=0.1)


@pytest.mark.parametrize("period", [1, 3, 7])
def test_pages_in_bursts_are_used_in_one_window_of_a_period_and_as_often_in_all(period: int) -> None:
    each = [intensity("in bursts", window, period) for window in range(10 * (period + 1))]
    assert np.mean(each) == pytest.approx(1, abs=0.02)
    assert sum(one > 0.5 for one in each) == 10


def test_all_kinds_are_drawn() -> None:
    shape = (8, PAGES, THREADS)
    for kind in KINDS:
        window, page, *_ = records([kind], shape, np.random.default_rng(3))
        assert len(np.unique(window)) > 1 and len(np.unique(page)) > PAGES // 2, kind


def test_a_number_stands_for_one_scenario() -> None:
    (host, specs), (again, others) = drawn(7), drawn(7)
    assert host.name == again.name and [one.name for one in specs] == [one.name for one in others]
    assert all((one.trace.loads == two.trace.loads).all() for one, two in zip(specs, others, strict=True))
