"""Estimates of blocks that hardly have a sample each, against the rates by which these were drawn."""

import numpy as np
import pytest

from vmplace.model.pooled_samples import pooled

BLOCKS = 256
NEAR, ALL = np.arange(BLOCKS) // 16, np.zeros(BLOCKS, np.intp)
SEED = 7


def estimated(rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    counts = np.random.default_rng(SEED).poisson(rates).astype(float)
    return counts, pooled(counts, np.ones(len(counts)), [NEAR, ALL])


def shares(some: np.ndarray) -> np.ndarray:
    found: np.ndarray = some / some.sum(axis=1, keepdims=True)
    return found


def test_blocks_that_all_nodes_use_alike_are_taken_to_be_so_whichever_were_sampled() -> None:
    counts, found = estimated(np.full((BLOCKS, 4), 0.1))
    assert (counts.sum(axis=1) == 0).mean() > 0.5
    assert found.sum(axis=1) == pytest.approx(0.4, abs=0.12)
    assert np.abs(shares(found) - 0.25).mean() < 0.1


def test_a_hot_block_has_its_own_samples_and_makes_no_other_hotter() -> None:
    rates = np.full((BLOCKS, 4), 0.1)
    rates[17] = [100.0, 0.0, 0.0, 0.0]
    counts, found = estimated(rates)
    assert found[17].tolist() == counts[17].tolist()
    others = np.delete(found, 17, axis=0)
    assert others.sum(axis=1).max() < 1.0
    assert others[:, 0].sum() / others.sum() == pytest.approx(0.25, abs=0.1)


def test_halves_of_a_guest_that_two_nodes_use_are_distinguished() -> None:
    rates = np.zeros((BLOCKS, 2))
    rates[: BLOCKS // 2, 0] = rates[BLOCKS // 2 :, 1] = 0.5
    found = shares(estimated(rates)[1])
    assert found[: BLOCKS // 2, 0].min() > 0.9 and found[BLOCKS // 2 :, 1].min() > 0.9


def test_a_hot_part_is_found_though_each_of_its_blocks_has_few_samples() -> None:
    rates = np.full((BLOCKS, 1), 0.02)
    rates[64:96] = 1.5
    found = estimated(rates)[1][:, 0]
    assert found[64:96].min() > 0.5 > 5 * np.delete(found, slice(64, 96)).mean()


def test_estimates_are_nearer_to_the_rates_than_counts_are() -> None:
    chance = np.random.default_rng(3)
    rates = chance.gamma(0.7, 0.5, (BLOCKS, 1)) * chance.dirichlet(np.full(4, 3.0), BLOCKS)
    counts, found = estimated(rates)
    assert ((found - rates) ** 2).sum() < 0.6 * ((counts - rates) ** 2).sum()


def test_nothing_sampled_is_nothing_expected() -> None:
    assert not pooled(np.zeros((BLOCKS, 2)), np.ones(BLOCKS), [NEAR, ALL]).any()


def test_a_part_of_a_block_counts_for_what_it_is() -> None:
    """Of half a block half as many samples are expected."""
    sizes = np.where(np.arange(BLOCKS) % 2, 1.0, 0.5)
    counts = np.random.default_rng(SEED).poisson(0.5 * sizes)[:, None].astype(float)
    found = pooled(counts, sizes, [NEAR, ALL])[:, 0]
    assert found[::2].mean() == pytest.approx(found[1::2].mean() / 2, rel=0.2)
