"""The joint linear program, against weights that follow from BWAP's equation and from arithmetic."""

import numpy as np
import pytest

from vmplace.errors import VmplaceError
from vmplace.model.memory_system import Link, MemorySystem, routed
from vmplace.policy.baselines.bwap import canonical_weights

pytest.importorskip("scipy", reason="scipy (extra: dev) is not there")
from bench.host_lp import Limits, Stream, plan_weights

ROOM = Limits(np.full(4, 1e9))


def pairs(bandwidth: np.ndarray) -> MemorySystem:
    """Return a host with a path for each pair; ``bandwidth[i, k]``: of memory on i to CPUs on k."""
    count = len(bandwidth)
    ends = [(k, i) for i in range(count) for k in range(count) if i != k]
    links = [Link((k, i), float(bandwidth[i, k]), directed=True) for k, i in ends]
    latency = 200.0 - 100 * np.eye(count)
    return routed(tuple(range(count)), latency, np.diag(bandwidth).copy(), links, 1.0)


def stream(demand, *, weights=(1, 0, 0, 0), **kind) -> Stream:
    return Stream("g", np.array(demand, float), 1000.0, np.array(weights, float), **kind)


def test_one_guest_with_one_worker_gets_the_canonical_weights_of_equation_2():
    table = np.array([[8, 4, 4, 2], [4, 8, 2, 4], [3, 2, 8, 4], [1, 3, 4, 8.0]])
    found = plan_weights(pairs(table), [stream([1, 0, 0, 0])], ROOM)
    np.testing.assert_allclose(found.weights[0], np.array([8, 4, 3, 1]) / 16, atol=1e-3)


def test_several_workers_get_the_canonical_weights_of_equation_5():
    table = np.full((4, 4), 4.0)
    table[3, 0], table[2, 1] = 1.0, 2.0
    np.fill_diagonal(table, [8.0] * 4)
    worker = np.array([True, True, False, False])
    found = plan_weights(pairs(table), [stream([1, 1, 0, 0])], ROOM)
    # Controllers 0 and 1 serve both workers: 8 for the two of them is 4 for each, as the paths are.
    np.testing.assert_allclose(found.weights[0], canonical_weights(table, worker), atol=0.02)


def test_guests_share_a_controller_that_each_alone_would_use():
    even = pairs(np.where(np.eye(4) > 0, 4.0, 100.0))
    both = [stream([1, 0, 0, 0]), stream([1, 0, 0, 0])]
    found = plan_weights(even, both, ROOM)
    np.testing.assert_allclose(found.weights.sum(axis=0), np.full(4, 0.5), atol=1e-3)


def test_capacity_churn_copies_and_movability_are_kept():
    system = pairs(np.full((4, 4), 4.0))
    far = stream([1, 0, 0, 0], weights=(0, 0, 0, 1))
    full = Limits(np.array([100, 1e9, 1e9, 1e9]))
    assert plan_weights(system, [far], full).weights[0, 0] <= 0.1 + 1e-6
    slow = Limits(np.full(4, 1e9), churn_pages=50)
    assert plan_weights(system, [far], slow).weights[0, 3] >= 0.95 - 1e-6
    fixed = stream([1, 0, 0, 0], weights=(0, 0, 0, 1), movable=False)
    np.testing.assert_allclose(plan_weights(system, [fixed], ROOM).weights[0], [0, 0, 0, 1])
    read = stream([1, 1, 1, 1], replicable=True)
    assert plan_weights(system, [read], ROOM).replicated[0] > 0.5
    budget = Limits(np.full(4, 1e9), replica_pages=300)
    assert plan_weights(system, [read], budget).replicated[0] == pytest.approx(0.1, abs=1e-6)


def test_what_cannot_fit_is_said():
    with pytest.raises(VmplaceError, match="no placement fits"):
        plan_weights(pairs(np.full((4, 4), 4.0)), [stream([1, 0, 0, 0])], Limits(np.full(4, 10.0)))
