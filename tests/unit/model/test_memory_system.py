import numpy as np
import pytest

from vmplace.model.memory_system import KNEE, Demand, Link, beside, routed, solved
from vmplace.model.published import (
    CARREFOUR_2013,
    CARREFOUR_TABLE_1,
    SHARED_LIBRARY_TICKS,
    PublishedRun,
    replayed,
    square,
)

ONE = np.ones(1)


def demand(shares, *, parallelism=16.0, think=50.0, mlp=2.0) -> Demand:
    return Demand(np.array([shares], float), ONE * parallelism, ONE * think, ONE * mlp)


def from_all_to(*to: float) -> np.ndarray:
    return np.tile(np.array(to) / 4, (4, 1))


@pytest.mark.parametrize("run", CARREFOUR_TABLE_1, ids=lambda run: run.name)
def test_latencies_of_carrefour_table_1_come_out_within_10_percent(run: PublishedRun):
    assert replayed(CARREFOUR_2013, run).latencies[0] == pytest.approx(run.latency, rel=0.10)


@pytest.mark.parametrize("run", CARREFOUR_TABLE_1, ids=lambda run: run.name)
def test_link_loads_of_carrefour_table_1_come_out_within_10_percent(run: PublishedRun):
    links = replayed(CARREFOUR_2013, run).utilisation[4:].mean()
    assert links == pytest.approx(run.link_utilisation, rel=0.10)


def test_idle_latencies_of_the_shared_library_paper_are_a_base_and_hops():
    latency = square(614.0, 315.0, 1.0, 1.0, 1.0).latency[0]
    for links, ticks in SHARED_LIBRARY_TICKS:
        assert latency[[0, 1, 2][links]] == pytest.approx(ticks, rel=0.01)


def test_rate_and_latency_agree():
    load = solved(CARREFOUR_2013, demand(from_all_to(0.7, 0.1, 0.1, 0.1)))
    assert load.rates[0] == pytest.approx(16 / (50 + load.latencies[0] / 2), rel=1e-6)


def test_an_overloaded_controller_serves_its_capacity_and_no_more():
    load = solved(CARREFOUR_2013, demand(from_all_to(1, 0, 0, 0), parallelism=256.0))
    assert load.rates[0] == pytest.approx(CARREFOUR_2013.controller[0], rel=0.08)


def test_a_lone_access_waits_for_nobody():
    load = solved(CARREFOUR_2013, demand(np.diag([1, 0, 0, 0]), parallelism=1e-6))
    assert load.latencies[0] == pytest.approx(200.0, rel=1e-4)


def test_guests_slow_each_other_only_where_they_meet():
    alone = solved(CARREFOUR_2013, demand(np.diag([1, 0, 0, 0]), parallelism=4)).rates[0]

    def beside(node: int) -> float:
        other = np.zeros((4, 4))
        other[node, node] = 1
        both = np.stack([np.diag([1.0, 0, 0, 0]), other])
        two = np.ones(2)
        return float(solved(CARREFOUR_2013, Demand(both, two * 4, two * 50, two * 2)).rates[0])

    assert beside(2) == pytest.approx(alone, rel=1e-6)
    assert beside(0) < 0.99 * alone


def test_equal_routes_share_the_accesses():
    assert CARREFOUR_2013.visits[0, 2, 4:].tolist() == [0.5, 0.5, 0.5, 0.5]
    assert CARREFOUR_2013.visits[0, 1, 4:].tolist() == [1, 0, 0, 0]


def test_a_directed_link_is_used_one_way():
    links = [Link((0, 1), 1.0, directed=True), Link((1, 0), 2.0, directed=True)]
    visits = routed((0, 1), np.full((2, 2), 100.0), np.ones(2), links, 1.0).visits
    assert visits[0, 1].tolist() == [0, 1, 1, 0]
    assert visits[1, 0].tolist() == [1, 0, 0, 1]


def test_memory_that_no_route_reaches_is_an_error():
    with pytest.raises(ValueError, match="no route"):
        routed((0, 5), np.full((2, 2), 100.0), np.ones(2), [], 1.0)


def test_a_guest_beside_rates_that_stay_gets_what_all_get_at_that_point():
    shares = np.stack([from_all_to(1, 0, 0, 0), from_all_to(0.4, 0.2, 0.2, 0.2), np.diag([0.25] * 4)])
    guests = Demand(shares, np.array([16.0, 4.0, 64.0]), np.array([50.0, 5.0, 100.0]), ONE * 2.0)
    rates = solved(CARREFOUR_2013, guests).rates
    asked = np.einsum("g,gkj,kjr->gr", rates, shares, CARREFOUR_2013.visits)
    assert beside(CARREFOUR_2013, guests, asked.sum(axis=0) - asked) == pytest.approx(rates, rel=1e-6)


def test_a_guest_beside_overload_still_has_an_answer():
    guest = demand(from_all_to(1, 0, 0, 0), parallelism=256.0)
    crowd = np.zeros((1, len(CARREFOUR_2013.capacities)))
    crowd[0, 0] = 3 * CARREFOUR_2013.controller[0]
    (rate,) = beside(CARREFOUR_2013, guest, crowd)
    assert 0 < rate < solved(CARREFOUR_2013, guest).rates[0]


def test_the_wait_is_rho_over_one_minus_rho_and_goes_on_along_its_tangent():
    system, rho = CARREFOUR_2013, np.array([0.0, 0.3, KNEE, 1.5] * 2)
    service = system.queue / system.capacities[:8]
    rates = np.concatenate([rho * system.capacities[:8], np.zeros(len(system.capacities) - 8)])
    below = np.minimum(rho, KNEE)
    length = below / (1 - below) + (rho - below) / (1 - KNEE) ** 2
    assert system.waits(rates)[:8] == pytest.approx(length * service, rel=1e-9)
    waits, margins = system.waits_and_margins(rates)
    assert (waits == system.waits(rates)).all() and (margins == system.marginal_waits(rates)).all()


def test_one_more_access_costs_what_it_makes_all_of_them_wait():
    system, rates = CARREFOUR_2013, CARREFOUR_2013.capacities * 0.6
    step = rates * 1e-6
    rise = ((rates + step) * system.waits(rates + step) - rates * system.waits(rates)) / step
    assert system.marginal_waits(rates) == pytest.approx(rise, rel=1e-4)
