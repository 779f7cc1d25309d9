"""Estimates from few samples, against rates from which the samples were drawn."""

import numpy as np
import pytest

from vmplace.model.credibility import credible

BLOCK = np.repeat(np.arange(8), 512)
RUN = np.arange(8 * 512) // 16


def estimated(rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what is counted and what is estimated of pages with these rates of being sampled."""
    counts = np.random.default_rng(1).poisson(rates).astype(float)[:, None]
    return counts[:, 0], credible(counts, counts, [RUN, BLOCK])[:, 0]


def error(some: np.ndarray, rates: np.ndarray) -> float:
    return float(np.mean((some - rates) ** 2))


def test_pages_of_an_even_block_are_taken_to_be_alike_whichever_were_sampled():
    rates = np.full(len(BLOCK), 0.05)
    counts, rate = estimated(rates)
    assert counts.max() >= 1
    assert rate.max() < 0.2
    assert error(rate, rates) < 0.02 * error(counts, rates)


def test_a_lone_sample_in_a_block_says_nothing_of_its_page():
    counts = np.zeros((512, 1))
    counts[7] = 1
    assert credible(counts, counts, [RUN[:512], BLOCK[:512]]) == pytest.approx(1 / 512)


@pytest.mark.parametrize("size", [1, 16])
def test_hot_pages_and_hot_runs_are_distinguished_from_cold_ones_beside_them(size: int):
    rates = np.where(np.arange(len(BLOCK)) // size % 2, 3.0, 0.0)
    counts, rate = estimated(rates)
    assert error(rate, rates) < 0.9 * error(counts, rates)
    assert rate[rates > 0].mean() > 3 * rate[rates == 0].mean()


def test_the_whole_is_neither_hotter_nor_colder_than_counted():
    counts, rate = estimated(np.random.default_rng(2).exponential(0.5, len(BLOCK)))
    assert rate.sum() == pytest.approx(counts.sum(), rel=0.02)


def test_a_block_without_samples_stays_cold():
    rates = np.where(BLOCK == 3, 0.0, 1.0)
    assert estimated(rates)[1][BLOCK == 3].max() == 0.0
