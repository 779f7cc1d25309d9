"""Shares of rates learnt from answers, against the same in numpy, and against declared shares."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmplace import native

Floats = npt.NDArray[np.float64]


def by_numpy(likely: Floats, pages: Floats, rounds: int) -> Floats:
    """Return the shares [kind, rate]; from even ones."""
    share = np.full((len(pages), len(likely)), 1 / len(likely))
    for _ in range(rounds):
        share *= (pages / (share @ likely)) @ likely.T / pages.sum(axis=1, keepdims=True)
    return share


@given(st.integers(1, 8), st.integers(2, 9), st.integers(1, 6), st.integers(0, 2**32))
def test_the_shares_are_those_that_numpy_learns(kinds: int, rates: int, answers: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    likely = chance.dirichlet(np.ones(answers), rates)
    pages = chance.integers(1, 10**6, (kinds, answers)).astype(np.float64)
    shares = np.full((kinds, rates), 1 / rates)
    native.learn_shares(likely, pages, shares, rates, 50)
    assert shares == pytest.approx(by_numpy(likely, pages, 50), rel=1e-6, abs=1e-12)


def test_declared_shares_are_found_where_answers_tell_rates_apart() -> None:
    likely = np.array([[0.9, 0.1, 0.0], [0.0, 0.1, 0.9]])
    pages = 1000 * np.array([[0.25, 0.75], [0.6, 0.4]]) @ likely
    shares = np.full((2, 2), 0.5)
    native.learn_shares(likely, pages, shares, 2, 400)
    assert shares == pytest.approx(np.array([[0.25, 0.75], [0.6, 0.4]]), abs=1e-6)


def test_a_kind_without_pages_keeps_its_shares() -> None:
    shares = np.array([[0.3, 0.7]])
    native.learn_shares(np.full((2, 2), 0.5), np.zeros((1, 2)), shares, 2, 9)
    assert shares.tolist() == [[0.3, 0.7]]


@pytest.mark.parametrize(("rates", "pages"), [(0, 2), (2, 3), (3, 2), (-1, 2)])
def test_shapes_that_do_not_fit_are_refused(rates: int, pages: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        native.learn_shares(np.ones((2, 2)), np.ones(pages), np.ones(2), rates, 1)
