"""Climbs of several guests: one step at a time, none for who may not move, anew where vCPUs moved."""

from collections.abc import Collection
from dataclasses import replace

from tests.unit.agent.agent_world import HOST, guest
from vmplace.agent.climbs import advance
from vmplace.agent.guests import TrackedGuest
from vmplace.policy.plan import GuestSettings
from vmplace.policy.trial import BEFORE, Trial, Verdict

RESTING = Trial(before=(1.0,) * BEFORE)
TUNED = GuestSettings(proximity=None)


def tuned(name: str, trial: Trial = RESTING) -> TrackedGuest:
    return TrackedGuest(guest(name), TUNED, trial=trial)


def let_pass(
    *guests: TrackedGuest, verdicts: dict[str, Verdict] | None = None, held: Collection[str] = ()
) -> list[float]:
    """Let a window pass; return where the guests' memory ought to lie then."""
    advance(guests, verdicts or {}, HOST, lambda name: name not in held)
    return [one.view.proximity for one in guests]


def test_one_guest_steps_at_a_time() -> None:
    first, second = tuned("a"), tuned("b")
    assert let_pass(first, second) == [0.9, 1.0]
    assert let_pass(first, second, verdicts={"a": Verdict.BACK}) == [1.0, 1.0]
    assert let_pass(first, second) == [1.0, 0.9]


def test_nobody_steps_while_another_guest_is_tried() -> None:
    assert let_pass(tuned("a"), tuned("b", replace(RESTING, trying=True))) == [1.0, 1.0]


def test_a_guest_that_may_not_move_waits_where_it_is() -> None:
    one = tuned("a")
    assert let_pass(one, held=["a"]) == [1.0]
    assert let_pass(one) == [0.9]
    for _ in range(20):
        assert let_pass(one, held=["a"]) == [0.9]


def test_a_proximity_that_is_set_stays() -> None:
    fixed = TrackedGuest(guest("a"), GuestSettings(proximity=0.4), trial=RESTING)
    assert let_pass(fixed) == [0.4]


def test_a_climb_begins_anew_where_the_vcpus_run_on_other_nodes() -> None:
    one = tuned("a")
    let_pass(one)
    let_pass(one, verdicts={"a": Verdict.BACK})
    assert one.climb.settled
    one.topology = guest("a", cpu=0)
    assert let_pass(one) == [0.9]
