"""Shared pages are distributed evenly unless the waits of others make another spread worth it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.test_host_plan import guest, two_nodes
from vmplace.model.memory_system import Link, routed
from vmplace.policy.even_spread import WORTH, Plans, distributed, evened, exchanged
from vmplace.policy.host_view import REPLICATED, GuestEvidence, NodeIndexes


def shared(pages: int = 100, *, parallelism: float = 4.0) -> GuestEvidence:
    return replace(guest([[9, 9]] * pages, parallelism=parallelism), name="span")


def places(*counts: int) -> NodeIndexes:
    return np.repeat(np.arange(len(counts)), counts).astype(np.int8)


def planned(
    plan: NodeIndexes, *, mine: GuestEvidence, beside: GuestEvidence, settled: bool = True
) -> np.ndarray:
    even, others = evened(
        two_nodes(controllers=(0.2, 0.2), link=10.0),
        [mine, beside],
        [plan, beside.node],
        [True, True],
        [settled, True],
    )
    assert (others == beside.node).all()
    return np.bincount(even, minlength=2)


def test_where_the_others_ask_little_what_moves_is_spread_out():
    quiet = guest([[9, 0]] * 10, parallelism=0.1)
    busy = shared(parallelism=24.0)
    assert planned(places(10, 90), mine=busy, beside=quiet).tolist() == [50, 50]


def test_what_may_as_well_stay_stays():
    """Half as many accesses: no controller is busy, wherever the pages are."""
    quiet = guest([[9, 0]] * 10, parallelism=0.1)
    assert planned(places(10, 90), mine=shared(parallelism=12.0), beside=quiet).tolist() == [100, 0]
    first = planned(places(10, 90), mine=shared(parallelism=12.0), beside=quiet, settled=False)
    assert first.tolist() == [50, 50]


def test_copies_stay_where_one_node_alone_was_seen_to_read_them():
    """The plan would take some of them to the node that is a trifle less busy."""
    mine = replace(guest([[9, 0]] * 50 + [[9, 9]] * 50), node=np.full(100, REPLICATED, np.int8))
    mine = replace(mine, worker=np.ones(2, bool))
    plan = np.concatenate([np.full(50, 1), np.full(50, REPLICATED)]).astype(np.int8)
    (kept,) = evened(two_nodes(), [mine], [plan], [True], [True])
    assert (kept == REPLICATED).all()


@pytest.mark.parametrize(("parallelism", "here"), [(1.5, 12), (2.0, 8), (3.0, 8)])
def test_what_guests_give_up_for_each_other_does_not_add_up(parallelism: float, here: int):
    """Sixteen guests, each of which may be left or distributed: none gets slower by more than WORTH."""
    system = two_nodes(controllers=(0.2, 0.2), link=10.0)
    many = tuple(replace(shared(20, parallelism=parallelism), name=f"g{number}") for number in range(16))
    plans = [places(here, 20 - here)] * 16
    kept = evened(system, many, plans, [True] * 16, [True] * 16)
    before, after = (Plans.of(system, many, one).times() for one in (plans, kept))
    assert (after <= (1 + WORTH) * before).all()


def test_a_guest_that_fits_a_node_is_left_to_the_plan_that_gathers_it():
    plan = places(10, 90)
    (even,) = evened(two_nodes(), [shared()], [plan], [False], [True])
    assert (even == plan).all()


def test_where_a_guest_needs_one_node_for_itself_the_plan_holds():
    busy = guest([[9, 0]] * 100, parallelism=40.0)
    assert planned(places(10, 90), mine=shared(), beside=busy).tolist() == [10, 90]


def test_what_lies_evenly_stays_for_all_that_the_plan_would_gain():
    mine = replace(shared(), node=places(50, 50))
    assert planned(places(45, 55), mine=mine, beside=guest([[9, 0]], parallelism=0.1)).tolist() == [50, 50]


def test_pages_with_a_home_and_copies_are_left_to_the_plan():
    mine = guest([[9, 1]] * 50 + [[1, 9]] * 50, node=0)
    plan = np.repeat(np.array([0, 1], np.int8), 50)
    (even,) = evened(two_nodes(), [mine], [plan], [True], [True])
    assert (even == plan).all()
    copied = np.full(100, REPLICATED, np.int8)
    (even,) = evened(two_nodes(), [shared()], [copied], [True], [True])
    assert (even == copied).all()


def test_pages_stay_off_nodes_that_are_not_the_guests():
    heat, near = np.ones((9, 3)), np.array([True, False, True])
    even = distributed(heat, np.ones(9, np.int8), np.full(9, 2, np.int8), near)
    assert sorted(np.bincount(even, minlength=3).tolist()) == [0, 4, 5] and not (even == 1).any()


@pytest.mark.parametrize("seed", range(20))
def test_what_was_not_to_move_stays_and_what_moves_evens_the_nodes(seed: int):
    chance = np.random.default_rng(seed)
    here, there = chance.integers(0, 4, (2, 200)).astype(np.int8)
    heat = np.repeat(chance.random((200, 1)), 4, axis=1)
    even = distributed(heat, here, there, np.ones(4, bool))
    assert (even[here == there] == here[here == there]).all()
    before, after = (np.bincount(at, heat.sum(axis=1), 4) for at in (there, even))
    assert np.ptp(after) <= np.ptp(before) + heat.sum(axis=1).max()


def test_huge_pages_that_are_alike_but_for_chance_stay_where_they_lie_evenly() -> None:
    """Ten of forty on each of four nodes; which node lacks a trifle varies from look to look."""
    chance = np.random.default_rng(3)
    heat = chance.poisson(400, (40, 4)).astype(float)
    here = (np.arange(40) % 4).astype(np.int8)
    there = ((here + 1) % 4).astype(np.int8)
    assert (distributed(heat, here, there, np.ones(4, bool)) == here).all()
    # The control: where one node has all of them, three in four go.
    crowded = np.zeros(40, np.int8)
    assert np.bincount(distributed(heat, crowded, there, np.ones(4, bool))).tolist() == [10, 10, 10, 10]


def test_pages_without_a_home_change_places_rather_than_nodes() -> None:
    """30 pages are to leave node 0, 30 others to come there: none has to, and 10 go to node 1 as planned."""
    mine = replace(shared(100), node=places(60, 40))
    plan = np.concatenate([places(20, 40), places(30, 10)])
    kept = exchanged(two_nodes(), mine, plan)
    assert np.bincount(kept).tolist() == np.bincount(plan).tolist() == [50, 50]
    assert int((kept != mine.node).sum()) == 10 < int((plan != mine.node).sum())


def test_pages_that_have_a_home_go_there_whoever_else_comes() -> None:
    mine = replace(guest([[9, 0]] * 10 + [[0, 9]] * 10), node=np.array([1] * 10 + [0] * 10, np.int8))
    assert exchanged(two_nodes(), mine, places(10, 10)).tolist() == places(10, 10).tolist()


def test_of_pages_that_change_places_the_fewest_bytes_move() -> None:
    """Half of the accesses are to go: two huge pages have as many as sixteen small ones together."""
    mine = guest([[64, 64]] * 2 + [[8, 8]] * 16 + [[64, 64]] * 2)
    sizes = np.array([512.0] * 2 + [1.0] * 16 + [512.0] * 2)
    mine = replace(mine, node=np.array([0] * 18 + [1] * 2, np.int8), sizes=sizes)
    plan = np.array([1] * 18 + [0] * 2, np.int8)
    kept = exchanged(two_nodes(), mine, plan)
    assert float(mine.sizes_of(np.flatnonzero(kept != mine.node)).sum()) == 16
    assert [float(mine.heat[kept == node].sum()) for node in (0, 1)] == [256.0, 512.0]


def test_absent_pages_and_copies_change_no_places() -> None:
    node = np.array([0, 1, -1, REPLICATED, 0, 1], np.int8)
    mine = replace(shared(6), node=node)
    plan = np.array([1, 0, -1, REPLICATED, REPLICATED, 0], np.int8)
    kept = exchanged(two_nodes(), mine, plan)
    assert kept[2:5].tolist() == plan[2:5].tolist()
    assert sorted(kept[[0, 1, 5]].tolist()) == [0, 0, 1]


def test_pages_that_gain_a_little_each_are_not_kept_from_it_for_good() -> None:
    """Two kinds lie on each other's node: a page gains less than 5 % by going home, its guest 3 % by all."""
    mine = guest([[53, 47]] * 100 + [[47, 53]] * 100, parallelism=4.0)
    mine = replace(mine, node=np.array([1] * 100 + [0] * 100, np.int8), think_ns=0.1)
    home = places(100, 100)
    assert (exchanged(two_nodes(), mine, home) == mine.node).all()
    (kept,) = evened(two_nodes(), [mine], [home], [False], [True])
    assert (kept == home).all()


@pytest.mark.parametrize("remote", [1.01, 1.05])
def test_planned_copies_are_made_however_near_remote_memory_is(remote: float) -> None:
    latency = np.array([[100.0, 100 * remote], [100 * remote, 100.0]])
    system = routed((0, 1), latency, np.ones(2), [Link((0, 1), 1.0)], 1.0)
    mine = replace(guest([[9, 9]] * 100, written=False), node=places(50, 50))
    plan = np.full(100, REPLICATED, np.int8)
    (kept,) = evened(system, [mine], [plan], [True], [True])
    assert (kept == REPLICATED).all()
