"""Traits that schedulers read do not flap: a node turns only after so long without a break."""

from vmplace.cloud.slow_state import SlowState


def fed(state: SlowState, *pressures: float, every_s: float = 60.0, from_s: float = 0.0) -> SlowState:
    for number, pressure in enumerate(pressures):
        state = state.after(from_s + number * every_s, {0: pressure})
    return state


def test_ten_minutes_of_pressure_make_a_node_tight_and_nine_do_not() -> None:
    assert fed(SlowState(), *[0.9] * 10).tight == frozenset()
    assert fed(SlowState(), *[0.9] * 11).tight == {0}


def test_a_break_begins_the_ten_minutes_anew() -> None:
    assert fed(SlowState(), *[0.9] * 9, 0.5, *[0.9] * 10).tight == frozenset()


def test_between_the_two_limits_nothing_changes() -> None:
    assert fed(SlowState(frozenset({0})), *[0.7] * 100).tight == {0}
    assert fed(SlowState(), *[0.7] * 100).tight == frozenset()


def test_a_tight_node_is_free_after_ten_minutes_below() -> None:
    assert fed(SlowState(frozenset({0})), *[0.5] * 11).tight == frozenset()


def test_what_is_not_said_stays_as_it_is() -> None:
    assert SlowState(frozenset({1})).after(1e6, {0: 0.0}).tight == {1}


def test_one_question_without_an_answer_is_no_break_and_two_are() -> None:
    begun = fed(SlowState().asked_each(60.0), *[0.9] * 6)
    assert fed(begun, *[0.9] * 4, from_s=420.0).tight == {0}
    assert fed(begun, *[0.9] * 10, from_s=480.0).tight == frozenset()
    assert fed(begun, *[0.9] * 11, from_s=480.0).tight == {0}
