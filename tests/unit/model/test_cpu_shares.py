"""vCPUs that outnumber the CPUs of a node: each guest weighs the same, and no vCPU gets more than one CPU."""

import numpy as np
import pytest

from vmplace.model.cpu_shares import fair_shares


@pytest.mark.parametrize(
    ("vcpus", "weights", "cpus", "shares"),
    [
        # Two vCPUs of a guest of two, one of a guest of four: 1.25 of weight on two CPUs.
        ((2, 1), (1 / 2, 1 / 4), 2, (0.8, 0.4)),
        # A guest of one vCPU cannot use its share of two CPUs; the other three divide what is left.
        ((1, 3), (1, 1 / 3), 2, (1, 1 / 3)),
        ((1, 1), (1, 1 / 8), 2, (1, 1)),
        ((0, 2), (1, 1 / 2), 1, (0, 0.5)),
    ],
)
def test_shares(
    vcpus: tuple[int, ...], weights: tuple[float, ...], cpus: int, shares: tuple[float, ...]
) -> None:
    reported = fair_shares(np.array(vcpus, float), np.array(weights, float), cpus)
    assert reported == pytest.approx(np.array(shares))


@pytest.mark.parametrize("seed", range(20))
def test_no_cpu_is_left_idle_while_a_vcpu_waits(seed: int) -> None:
    chance = np.random.default_rng(seed)
    vcpus, cpus = chance.integers(0, 5, 6).astype(float), float(chance.integers(1, 12))
    reported = fair_shares(vcpus, 1 / np.maximum(vcpus + chance.integers(0, 4, 6), 1), cpus)
    assert (reported <= 1).all()
    assert float(reported @ vcpus) == pytest.approx(min(cpus, vcpus.sum()))
