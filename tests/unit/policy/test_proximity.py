"""Climbs: outward while it pays, one step back when it does not, within one step of the best."""

import numpy as np
import pytest

from vmplace.policy.proximity import PATIENCE, STEP, Climb
from vmplace.policy.trial import AFTER, BEFORE, Trial, Verdict

RESTING = {"trying": False, "ready": True}


def stepped() -> Climb:
    return Climb((0, 1)).after_window(None, **RESTING)


def test_a_guest_that_does_not_rest_takes_no_step():
    assert Climb().after_window(None, trying=True, ready=False) == Climb()


def test_the_first_step_is_outward():
    assert (stepped().dwp, stepped().stepping) == (1 - STEP, True)


def test_a_step_that_paid_is_followed_by_the_next():
    climb = stepped().after_window(Verdict.KEEP, **RESTING)
    assert climb.dwp == pytest.approx(1 - 2 * STEP)
    assert "0.9 is better than 1.0" in climb.summary


@pytest.mark.parametrize("verdict", [Verdict.BACK, Verdict.UNDO, Verdict.HOLD])
def test_any_other_verdict_ends_the_climb_where_it_was_before(verdict: Verdict):
    climb = stepped().after_window(verdict, **RESTING)
    assert (climb.dwp, climb.settled) == (1.0, True)
    assert climb.after_window(None, **RESTING) == climb


def test_a_step_that_moves_nothing_is_given_up():
    climb = stepped()
    for _ in range(PATIENCE):
        climb = climb.after_window(None, **RESTING)
        assert climb.stepping
    assert climb.after_window(None, **RESTING).dwp == 1.0


def test_a_step_that_takes_long_to_move_is_waited_for():
    climb = stepped()
    for _ in range(3 * PATIENCE):
        climb = climb.after_window(None, trying=True, ready=False)
    assert climb.stepping


@pytest.mark.parametrize("best", [0.0, 0.32, 0.75, 1.0])
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_judged_by_trials_it_ends_within_a_step_of_a_convex_optimum(best: float, noise: float):
    chance = np.random.default_rng(5)
    trial, climb, at = Trial(), Climb(), 1.0
    for window in range(40 * (BEFORE + AFTER)):
        cost = (1 + (at - best) ** 2) * chance.normal(1.0, noise)
        moved, at = at != climb.dwp, climb.dwp
        trial, verdict = trial.after_window(cost, moved=moved, now_s=float(window), step=climb.stepping)
        climb = climb.after_window(verdict, trying=trial.trying, ready=trial.is_resting)
    assert climb.settled
    # A parabola is flat near its end: noise may end the climb where a step gains less than the noise.
    flat = noise / STEP
    assert at == pytest.approx(best, abs=STEP + 2 * flat + 1e-9)
