"""Sums of accesses by place, and cheapest places, against a plain loop over pages."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmplace import native

ABSENT, REPLICATED = -1, -2
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pages:
    """Heat of some pages, and where each is."""

    heat: Floats
    places: npt.NDArray[np.int8]


@st.composite
def pages(draw: st.DrawFn) -> Pages:
    nodes, count = draw(st.integers(1, 5)), draw(st.integers(0, 12))
    cells = st.integers(0, 3).map(float)
    heat = draw(st.lists(cells, min_size=count * nodes, max_size=count * nodes))
    places = draw(st.lists(st.integers(REPLICATED, nodes - 1), min_size=count, max_size=count))
    return Pages(np.array(heat).reshape(count, nodes), np.array(places, np.int8))


def summed(some: Pages) -> Floats:
    nodes = some.heat.shape[1]
    total = np.zeros((nodes, nodes))
    for row, place in zip(some.heat, some.places.tolist(), strict=True):
        for node in range(nodes):
            if place != ABSENT:
                total[node, node if place == REPLICATED else place] += row[node]
    return total


@given(pages())
def test_traffic_is_what_a_plain_loop_sums(some: Pages) -> None:
    found = np.full((some.heat.shape[1],) * 2, 7.0)
    native.place_traffic(some.heat, some.places, found)
    assert (found == summed(some)).all()


def cheapest(heat: Floats, places: list[int], prices: Floats, **others: list[float]) -> list[int]:
    """Call with prices of moves and copies of 10 and memory everywhere, unless ``others`` say."""
    count, nodes = heat.shape
    move, copy = (np.array(others.get(name, [10.0] * count)) for name in ("move", "copy"))
    memory, best = np.array(others.get("memory", [1] * nodes), np.uint8), np.zeros(count, np.int8)
    native.place_cheapest(heat, np.array(places, np.int8), prices, memory, move, copy, best)
    return best.tolist()


@given(pages(), st.integers(0, 99))
def test_costs_are_what_a_plain_loop_sums(some: Pages, seed: int) -> None:
    nodes = some.heat.shape[1]
    prices = np.random.default_rng(seed).integers(0, 9, (nodes, nodes)).astype(float)
    found = np.full(len(some.places), 7.0)
    native.place_costs(some.heat, some.places, prices, found)
    for row, place, cost in zip(some.heat, some.places.tolist(), found.tolist(), strict=True):
        at = [node if place == REPLICATED else place for node in range(nodes)]
        assert cost == (0 if place == ABSENT else sum(row[n] * prices[n, at[n]] for n in range(nodes)))


@pytest.mark.parametrize(
    ("places", "prices", "costs"), [([2], 4, 1), ([-3], 4, 1), ([0, 1], 4, 2), ([0], 3, 1), ([0], 4, 2)]
)
def test_costs_of_arrays_that_do_not_fit_are_refused(places: list[int], prices: int, costs: int) -> None:
    shape = (2, 2) if prices == 4 else (3,)
    with pytest.raises(ValueError):
        native.place_costs(np.ones((1, 2)), np.array(places, np.int8), np.ones(shape), np.empty(costs))


NEAR_AND_FAR = np.array([[1.0, 2.0], [2.0, 1.0]])


def test_page_moves_when_that_saves_more_than_its_price() -> None:
    assert cheapest(np.array([[0.0, 9.0], [0.0, 11.0]]), [0, 0], NEAR_AND_FAR, copy=[np.inf] * 2) == [0, 1]


def test_page_is_copied_when_both_nodes_save_more_than_the_price_of_copies() -> None:
    assert cheapest(np.array([[20.0, 9.0], [20.0, 11.0]]), [0, 0], NEAR_AND_FAR) == [0, REPLICATED]


def test_prices_are_by_node_of_the_access_and_place() -> None:
    # Node 0 reaches node 1 dearly, node 1 reaches node 0 cheaply: pages of both belong on node 0.
    lopsided = np.array([[1.0, 9.0], [2.0, 1.0]])
    assert cheapest(np.array([[10.0, 10.0]]), [1], lopsided, copy=[np.inf]) == [0]


def test_page_that_may_have_no_copies_loses_them() -> None:
    assert cheapest(np.array([[20.0, 30.0]]), [REPLICATED], NEAR_AND_FAR, copy=[np.inf]) == [1]


def test_untouched_and_absent_pages_stay() -> None:
    assert cheapest(np.array([[0.0, 0.0], [0.0, 99.0]]), [0, ABSENT], NEAR_AND_FAR) == [0, ABSENT]


def test_no_page_goes_to_a_node_without_memory() -> None:
    assert cheapest(np.array([[0.0, 99.0]]), [0], NEAR_AND_FAR, memory=[1, 0], copy=[np.inf]) == [0]


def test_what_may_not_move_stays_where_nothing_may_be_and_has_copies_only_at_their_price() -> None:
    """Node 0 may hold nothing: the page stays there, whatever nearer memory would save."""
    stay: dict[str, list[float]] = {"memory": [0, 1], "move": [np.inf]}
    heat = np.array([[20.0, 30.0]])
    assert cheapest(heat, [0], NEAR_AND_FAR, copy=[1e12], **stay) == [0]
    assert cheapest(heat, [0], NEAR_AND_FAR, copy=[29.0], **stay) == [REPLICATED]
    assert cheapest(np.array([[0.0, 9.0]]), [0], NEAR_AND_FAR, copy=[10.0], **stay) == [0]
    assert cheapest(heat, [0], NEAR_AND_FAR, copy=[1e12], memory=[0, 1]) == [1]


def test_place_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no place 2"):
        native.place_traffic(np.zeros((1, 2)), np.array([2], np.int8), np.zeros((2, 2)))


def test_heat_that_does_not_fit_the_places_is_refused() -> None:
    with pytest.raises(ValueError, match="heat"):
        native.place_traffic(np.zeros((3, 2)), np.array([0], np.int8), np.zeros((2, 2)))
