"""Heat from bits and samples together, against accesses that were made up first."""

import numpy as np
import numpy.typing as npt
import pytest

from vmplace.model.fusion import fused

NPAGES, NODES, PERIOD = 4096, 4, 500
Floats = npt.NDArray[np.float64]


def made_up(tail: float) -> Floats:
    """Return skewed accesses [page, node]: half of the pages are one node's, a quarter is never used."""
    chance = np.random.default_rng(7)
    hot = chance.pareto(tail, (NPAGES, 1)) * 100
    share = np.where(np.arange(NPAGES)[:, None] % 2, 1.0, np.arange(NODES) == 1)
    made: Floats = hot * share * (np.arange(NPAGES)[:, None] % 4 != 0)
    return made


@pytest.fixture
def accesses() -> Floats:
    return made_up(1.2)


def seen(accesses: Floats, period: int = PERIOD) -> tuple[Floats, Floats]:
    """Return in how many of eight windows each was touched, and samples of one access in ``period``."""
    chance = np.random.default_rng(8)
    windows = chance.binomial(8, -np.expm1(-accesses / 8)).astype(np.float64)
    return windows, chance.poisson(accesses / period).astype(np.float64)


def error(heat: Floats, accesses: Floats) -> float:
    """Return which share of all heat is in the wrong place."""
    return float(np.abs(heat / heat.sum() - accesses / accesses.sum()).sum() / 2)


def block() -> npt.NDArray[np.int64]:
    return np.arange(NPAGES) // 512


@pytest.mark.parametrize("tail", [1.2, 2.0, 4.0])
@pytest.mark.parametrize("period", [50, 500, 5000])
def test_both_together_are_nearer_to_the_truth_than_each_alone(tail: float, period: int) -> None:
    """From pages that hardly differ to few that have nearly all, and from few samples to many."""
    accesses = made_up(tail)
    windows, samples = seen(accesses, period)
    together = error(fused(windows, samples, block()).heat, accesses)
    assert together < min(error(windows, accesses), error(samples, accesses))


def test_what_neither_saw_is_not_used(accesses: Floats) -> None:
    windows, samples = seen(accesses)
    heat = fused(windows, samples, block()).heat
    assert not heat[(windows == 0) & (samples == 0)].any()
    assert (heat[samples > 0] > 0).all()


def test_a_sample_counts_though_no_bit_was_set() -> None:
    expected, samples = np.array([[2.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 3.0], [0.0, 0.0]])
    assert fused(expected, samples, np.zeros(2, np.int64)).heat[0, 1] > 0


def test_without_samples_heat_is_what_bits_expect() -> None:
    expected = np.array([[2.0, 0.0], [1.0, 4.0]])
    result = fused(expected, np.zeros_like(expected), np.zeros(2, np.int64))
    assert result.heat.tolist() == expected.tolist()


def test_each_node_gets_the_total_that_counters_tell(accesses: Floats) -> None:
    windows, samples = seen(accesses)
    totals = accesses.sum(axis=0)
    assert fused(windows, samples, block(), totals).heat.sum(axis=0) == pytest.approx(totals)


def test_the_error_it_tells_is_the_error_it_makes() -> None:
    """Accesses drawn from a Gamma distribution, as the model has them."""
    accesses = np.random.default_rng(9).gamma(2.0, 150.0, (NPAGES, NODES))
    reported = fused(np.ones_like(accesses), seen(accesses)[1], block())
    heat = reported.heat / reported.heat.sum() * accesses.sum()
    wrong = np.sqrt(((heat - accesses) ** 2).sum() / (heat**2).sum())
    assert wrong == pytest.approx(
        np.sqrt((reported.relative_error**2 * heat**2).sum() / (heat**2).sum()), rel=0.1
    )
