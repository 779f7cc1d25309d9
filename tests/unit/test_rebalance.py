"""Who goes where between hosts: off the most pressed, to the least pressed with room, never for worse."""

from vmplace.fleet.rebalance import Limits, Migration, PressingGuest, Rebalance, plan_rebalance

Loads = dict[str, dict[int, float]]
LIMITS = Limits(threshold=0.8, target=0.7, most=5)


def plan(
    loads: Loads, *guests: tuple[str, str, dict[int, float]], full: str = "", most: int = 5
) -> Rebalance:
    pressing = [PressingGuest(*guest) for guest in guests]
    limits = Limits(LIMITS.threshold, LIMITS.target, most)
    return plan_rebalance(loads, pressing, lambda _uuid, host, _before: host != full, limits)


def one(**loads: float) -> Loads:
    """Return hosts of one node each."""
    return {host: {0: load} for host, load in loads.items()}


def test_the_guest_that_relieves_most_goes_to_the_least_pressed_host() -> None:
    reported = plan(one(a=0.9, b=0.3, c=0.1), ("g", "a", {0: 0.1}), ("h", "a", {0: 0.4}))
    assert reported.migrations == (Migration("h", "a", "c"),)
    assert reported.expected == {"a": 0.5, "b": 0.3, "c": 0.5}


def test_a_guest_on_another_node_is_no_help() -> None:
    loads = {"a": {0: 0.9, 1: 0.5}, "b": {0: 0.1, 1: 0.1}}
    reported = plan(loads, ("big", "a", {1: 0.5}), ("small", "a", {0: 0.3}))
    assert reported.migrations == (Migration("small", "a", "b"),)


def test_where_both_nodes_are_full_both_are_relieved() -> None:
    """After the first migration the fullest node is as full as before."""
    loads = {"a": {0: 0.9, 1: 0.9}, "b": {0: 0.0, 1: 0.0}}
    reported = plan(loads, ("g", "a", {0: 0.3}), ("h", "a", {1: 0.3}))
    assert {move.uuid for move in reported.migrations} == {"g", "h"}


def test_of_like_relief_the_one_that_burdens_others_less_goes() -> None:
    reported = plan(one(a=0.9, b=0.1), ("big", "a", {0: 0.5}), ("small", "a", {0: 0.3}))
    assert reported.migrations == (Migration("small", "a", "b"),)


def test_a_guest_is_expected_to_land_on_the_fullest_node() -> None:
    loads = {"a": {0: 0.9}, "b": {0: 0.5, 1: 0.0}, "c": {0: 0.3, 1: 0.3}}
    assert plan(loads, ("g", "a", {0: 0.3})).migrations == (Migration("g", "a", "c"),)


def test_a_guest_that_would_only_carry_the_trouble_along_stays() -> None:
    """Half a node more would be too much anywhere; the smaller guest helps."""
    reported = plan(one(a=0.9, b=0.3), ("big", "a", {0: 0.5}), ("small", "a", {0: 0.15}))
    assert reported.migrations == (Migration("small", "a", "b"),)


def test_what_relieves_too_little_is_not_worth_a_migration() -> None:
    assert plan(one(a=0.9, b=0.0), ("g", "a", {0: 0.04})).migrations == ()


def test_full_hosts_take_nobody() -> None:
    reported = plan(one(a=0.9, b=0.3, c=0.1), ("g", "a", {0: 0.4}), full="c")
    assert reported.migrations == (Migration("g", "a", "b"),)


def test_calm_fleets_are_left_alone() -> None:
    assert plan(one(a=0.79, b=0.0), ("g", "a", {0: 0.4})).migrations == ()


def test_two_hosts_are_relieved_one_after_the_other_within_the_limit() -> None:
    guests = [("g", "a", {0: 0.3}), ("h", "b", {0: 0.3})]
    assert len(plan(one(a=0.9, b=0.95, c=0.0), *guests).migrations) == 2
    assert plan(one(a=0.9, b=0.95, c=0.0), *guests, most=1).migrations == (Migration("h", "b", "c"),)


def test_a_guest_moves_once() -> None:
    assert plan(one(a=2.0, b=0.1), ("g", "a", {0: 0.3})).migrations == (Migration("g", "a", "b"),)


def test_hosts_and_guests_without_a_figure_are_left_alone() -> None:
    reported = plan({"a": {0: 0.9}, "b": {}}, ("g", "a", {}), ("h", "gone", {0: 0.5}))
    assert reported.migrations == () and reported.expected == {"a": 0.9}
