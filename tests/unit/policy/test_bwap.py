"""BWAP, against its equations and an exhaustive search."""

from pathlib import Path

import numpy as np
import pytest

import vmplace.simulate
from vmplace.model.memory_system import Link, MemorySystem, routed, solved
from vmplace.policy.baselines import bwap
from vmplace.policy.baselines.bwap import STEP, with_dwp
from vmplace.policy.host_view import ABSENT, GuestEvidence, HostView, demand, traffic
from vmplace.simulate.host_file import read_host

HOSTS = Path(vmplace.simulate.__file__).parent / "hosts"
WORKERS = np.array([True, True, False, False])


def test_one_worker_weighs_nodes_by_their_bandwidth_to_it():
    table = np.array([[8, 1], [4, 1], [3, 1], [1, 1.0]])
    np.testing.assert_allclose(
        bwap.canonical_weights(table, np.array([True, False])), [0.5, 0.25, 3 / 16, 1 / 16]
    )


def test_several_workers_weigh_nodes_by_the_weakest_path():
    table = np.array([[8, 4], [4, 8], [6, 2], [2, 6.0]])
    np.testing.assert_allclose(
        bwap.canonical_weights(table, np.array([True, True])), np.array([4, 4, 2, 2]) / 12
    )


def test_dwp_goes_from_the_canonical_weights_to_workers_only_and_keeps_proportions():
    weights = np.array([0.4, 0.2, 0.3, 0.1])
    np.testing.assert_allclose(with_dwp(weights, WORKERS, 0.0), weights)
    np.testing.assert_allclose(with_dwp(weights, WORKERS, 1.0), [2 / 3, 1 / 3, 0, 0], atol=1e-12)
    half = with_dwp(weights, WORKERS, 0.5)
    assert half.sum() == pytest.approx(1)
    assert (half[0] / half[1], half[2] / half[3]) == (pytest.approx(2), pytest.approx(3))


def test_a_stall_rate_is_the_mean_of_the_middle_readings():
    assert bwap.stall_rate([*[-1e9] * 5, *[3.0] * 10, *[1e9] * 5]) == 3.0


def test_pages_follow_weights_with_as_few_moves_as_need_be():
    node = np.zeros(1000, np.int8)
    plan = bwap.follow_weights(node, np.array([0.4, 0.3, 0.2, 0.1]))
    assert np.bincount(plan).tolist() == [400, 300, 200, 100]
    further = bwap.follow_weights(plan, np.array([0.5, 0.3, 0.15, 0.05]))
    assert int((further != plan).sum()) == 100


def climbed_to(stall) -> float:
    climb = bwap.Climb()
    while not climb.done:
        climb = bwap.climbed(climb, stall(climb.dwp), None)
    return climb.dwp


@pytest.mark.parametrize("best", [0.2, 0.5, 0.8])
def test_the_climb_ends_within_a_step_of_the_optimum_of_a_convex_stall_rate(best: float):
    assert climbed_to(lambda dwp: (dwp - best) ** 2) == pytest.approx(best, abs=STEP + 1e-9)


def ring(controller: float, link: float) -> MemorySystem:
    latency = np.array([[100.0 + 100 * (i != j) for j in range(4)] for i in range(4)])
    return routed(
        (0, 1, 2, 3), latency, np.full(4, controller), [Link((i, (i + 1) % 4), link) for i in range(4)], 1.0
    )


@pytest.mark.parametrize(("controller", "link"), [(0.02, 0.05), (0.08, 0.02), (1.0, 1.0)])
def test_the_climb_lands_within_a_step_of_exhaustive_search_in_the_memory_model(
    controller: float, link: float
):
    system = ring(controller, link)
    heat = np.zeros((2000, 4))
    heat[:, :2] = 9.0
    pages = GuestEvidence(
        "g",
        heat,
        np.ones(2000, np.bool_),
        np.zeros(2000, np.int8),
        WORKERS,
        np.ones(2000, np.int64),
        None,
        16.0,
        50.0,
        2.0,
    )
    weights = bwap.canonical_weights(bwap.bandwidths(system, WORKERS), WORKERS)

    def stall(dwp: float) -> float:
        node = bwap.follow_weights(pages.node, with_dwp(weights, WORKERS, dwp))
        return float(solved(system, demand((pages,), [traffic(heat, node)])).latencies[0])

    best = min(np.linspace(0, 1, 101), key=stall)
    assert climbed_to(stall) == pytest.approx(best, abs=STEP + 0.01)


def test_beside_a_protected_guest_the_climb_first_follows_that_guests_stall_rate():
    climb = bwap.Climb(stage=1)
    while not climb.done:
        # The own stall rate rises with every step; the protected guest's falls until 0.6.
        climb = bwap.climbed(climb, climb.dwp, abs(climb.dwp - 0.6))
    assert climb.dwp >= 0.6


def test_one_worker_of_the_asymmetric_host_weighs_nodes_by_what_reaches_it():
    # The host's bandwidths as seen by node 0, made to sum to one.
    system = read_host(HOSTS / "asymmetric-8.toml").system
    worker = np.arange(8) == 0
    weights = bwap.canonical_weights(bwap.bandwidths(system, worker), worker)
    row = np.array([9300, 5500, 2900, 1800, 3600, 1800, 2900, 1800.0])
    np.testing.assert_allclose(weights, row / row.sum(), atol=0.002)


def present(pages: int) -> GuestEvidence:
    node = np.full(1000, ABSENT, np.int8)
    node[:pages] = 0
    return GuestEvidence(
        "g", np.zeros((1000, 4)), node < 0, node, WORKERS, np.ones(1000, np.int64), None, 4.0, 9.0, 2.0
    )


def test_pages_stay_while_memory_grows_and_are_distributed_once_it_does_not():
    planner, host = bwap.BwapPlanner(), ring(0.02, 0.05)
    for pages in range(100, 1000, 30):
        view = HostView(host, np.full(4, 1000.0), (present(pages),), 2000.0)
        assert (planner.plan(view).pages[0] == view.guests[0].node).all()
    for _ in range(bwap.READINGS + 1):
        plan = planner.plan(view).pages[0]
    assert len(np.unique(plan[plan >= 0])) == 4
