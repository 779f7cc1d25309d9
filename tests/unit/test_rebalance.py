"""Who goes where between hosts: off the most pressed, to the least pressed with room, never for worse."""

from vmplace.fleet.rebalance import Migration, PressingGuest, plan_rebalance


def plan(pressures: dict[str, float], *guests: tuple[str, str, float], full: str = "", most: int = 5):
    pressing = [PressingGuest(*guest) for guest in guests]
    return plan_rebalance(pressures, pressing, lambda _uuid, host, _before: host != full, most=most)


def test_the_guest_that_presses_most_goes_to_the_least_pressed_host() -> None:
    reported = plan({"a": 0.9, "b": 0.3, "c": 0.1}, ("g", "a", 0.2), ("h", "a", 0.4))
    assert reported.migrations == (Migration("h", "a", "c"),)
    assert reported.expected == {"a": 0.5, "b": 0.3, "c": 0.5}


def test_a_guest_that_would_only_carry_the_trouble_along_stays() -> None:
    """Half a node more would be too much anywhere; the smaller guest helps."""
    reported = plan({"a": 0.9, "b": 0.3}, ("big", "a", 0.5), ("small", "a", 0.2))
    assert reported.migrations == (Migration("small", "a", "b"),)


def test_full_hosts_take_nobody() -> None:
    reported = plan({"a": 0.9, "b": 0.3, "c": 0.1}, ("g", "a", 0.4), full="c")
    assert reported.migrations == (Migration("g", "a", "b"),)


def test_calm_fleets_are_left_alone() -> None:
    assert plan({"a": 0.79, "b": 0.0}, ("g", "a", 0.4)).migrations == ()


def test_two_hosts_are_relieved_one_after_the_other_within_the_limit() -> None:
    guests = [("g", "a", 0.3), ("h", "b", 0.3)]
    assert len(plan({"a": 0.9, "b": 0.95, "c": 0.0}, *guests).migrations) == 2
    assert plan({"a": 0.9, "b": 0.95, "c": 0.0}, *guests, most=1).migrations == (Migration("h", "b", "c"),)


def test_a_guest_moves_once() -> None:
    reported = plan({"a": 2.0, "b": 0.1}, ("g", "a", 0.3))
    assert reported.migrations == (Migration("g", "a", "b"),)
