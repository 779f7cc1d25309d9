"""Trials: kept unless the cost rose beyond the noise, undone once, never repeated soon."""

import math

import numpy as np
import pytest

from vmplace.policy.trial import AFTER, BEFORE, FIRST_WAIT_S, LONGEST, Trial, Verdict, is_worse

QUIET = (1.0, 1.01, 0.99, 1.0)


def run(trial: Trial, costs: tuple[float | None, ...], now_s: float = 0.0) -> tuple[Trial, Verdict | None]:
    """Let windows with these costs pass in which nothing moved."""
    verdict = None
    for cost in costs:
        assert verdict is None
        trial, verdict = trial.after_window(cost, moved=False, now_s=now_s)
    return trial, verdict


def moved(trial: Trial, cost: float | None = 1.0) -> Trial:
    after, verdict = trial.after_window(cost, moved=True, now_s=0.0)
    assert verdict is None
    return after


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ((0.7, 0.71, 0.7, 0.69), Verdict.KEEP),
        (QUIET, Verdict.KEEP),
        # 2 % are within the tolerance, and what differs so much from window to window says nothing.
        ((1.02, 1.02, 1.03, 1.02), Verdict.KEEP),
        ((0.7, 1.6, 0.8, 1.4), Verdict.KEEP),
        ((1.2, 1.21, 1.19, 1.2), Verdict.UNDO),
    ],
)
def test_a_first_placement_is_undone_only_if_it_made_things_worse(
    after: tuple[float, ...], verdict: Verdict
) -> None:
    trial, reported = run(moved(run(Trial(), QUIET)[0]), after)
    assert reported is verdict
    assert trial.is_left_alone(FIRST_WAIT_S - 1) == (verdict is Verdict.UNDO)
    assert not trial.is_left_alone(FIRST_WAIT_S)


def test_windows_in_which_pages_move_are_nobodys() -> None:
    trial = run(Trial(), QUIET)[0]
    for cost in (5.0, 9.0, 3.0):
        trial = moved(trial, cost)
    assert run(trial, QUIET)[1] is Verdict.KEEP


def test_a_guest_that_cannot_be_measured_is_never_judged() -> None:
    trial = moved(run(Trial(), (None,) * 10)[0], None)
    assert run(trial, (None,) * 10)[1] is None
    assert Trial().is_measured(None)


def test_nothing_moves_before_the_cost_is_known() -> None:
    trial = Trial()
    for known in range(BEFORE):
        assert trial.is_measured(1.0) == (known == BEFORE - 1)
        trial, _ = trial.after_window(1.0, moved=False, now_s=0.0)


def test_what_comes_after_a_kept_placement_is_not_undone_but_ends() -> None:
    trial = run(moved(run(Trial(), QUIET)[0]), (0.7, 0.71, 0.69, 0.7))[0]
    trial, verdict = run(moved(trial, 0.7), (0.9, 0.91, 0.9, 0.9), now_s=100.0)
    assert verdict is Verdict.HOLD
    assert trial.is_left_alone(100.0 + FIRST_WAIT_S - 1)
    assert "+29 %" in trial.summary


def test_each_failure_doubles_the_wait_and_a_success_ends_that() -> None:
    trial, now_s, waits = Trial(), 0.0, []
    for _ in range(3):
        trial = run(trial, QUIET, now_s)[0]
        trial = run(moved(trial), (2.0, 2.0, 2.01, 2.0), now_s)[0]
        waits.append(trial.left_alone_until - now_s)
        now_s = trial.left_alone_until
    assert waits == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert run(moved(run(trial, QUIET, now_s)[0]), QUIET, now_s)[0].wait_s == FIRST_WAIT_S


def test_noise_alone_is_hardly_ever_taken_for_a_loss() -> None:
    chance = np.random.default_rng(7)
    draws = chance.normal(1.0, 0.1, (4000, BEFORE + AFTER))
    wrong = sum(is_worse(row[:BEFORE], row[BEFORE:]) for row in draws)
    # Student's t with 3 to 6 degrees of freedom leaves 1.2 to 2.9 % beyond three standard errors.
    assert wrong / len(draws) < 0.03


def windows(trial: Trial, costs: tuple[float, ...], window_s: float) -> tuple[Trial, int, Verdict | None]:
    """Let windows pass in which nothing moves, until a verdict; return how many."""
    for count, cost in enumerate(costs, 1):
        trial, verdict = trial.after_window(cost, moved=False, now_s=0.0, window_s=window_s)
        if verdict is not None:
            return trial, count, verdict
    return trial, len(costs), None


@pytest.mark.parametrize("window_s", [0.1, 0.2, 0.25, 0.4, 0.5, 1.0, 2.0])
def test_a_trial_takes_as_many_seconds_however_short_windows_are(window_s: float) -> None:
    """The way that pages take disturbs a guest for a while: three short windows after it are no verdict."""
    a_sample = math.ceil(1 / window_s)
    before = windows(Trial(), (1.0, 1.01, 0.99) * 20, window_s)[0]
    tried, verdict = before.after_window(1.0, moved=True, now_s=0.0, window_s=window_s)
    assert verdict is None
    _, count, verdict = windows(tried, (0.7, 0.71, 0.7) * 20, window_s)
    assert (count, verdict) == (AFTER * a_sample, Verdict.KEEP)


@pytest.mark.parametrize("window_s", [0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0])
def test_a_cost_counts_as_known_after_as_many_seconds_however_short_windows_are(window_s: float) -> None:
    trial, known_after = Trial(), None
    for window in range(1, 300):
        if known_after is None and trial.is_measured(1.0, window_s=window_s):
            known_after = window * window_s
        trial, _ = trial.after_window(1.0, moved=False, now_s=0.0, window_s=window_s)
    assert known_after == BEFORE


def test_a_sample_is_the_mean_of_its_windows_and_a_move_begins_a_new_one() -> None:
    trial = windows(Trial(), (1.0, 2.0, 3.0, 2.0), 0.25)[0]
    assert trial.before == (2.0,)
    trial = windows(trial, (9.0,), 0.25)[0]
    trial, _ = trial.after_window(9.0, moved=True, now_s=0.0, window_s=0.25)
    assert windows(trial, (1.0,) * 4, 0.25)[0].before == (2.0, 1.0)


@pytest.mark.parametrize("window_s", [0.1, 0.25, 1.0, 10.0])
@pytest.mark.parametrize("every", [1, 3, 4, 5, 8, 15, 16])
@pytest.mark.parametrize("waits", [True, False])
def test_a_guest_whose_pages_keep_moving_is_judged_all_the_same(
    window_s: float, every: int, waits: bool
) -> None:
    """It takes half as long again since the first move, and moves once in a while ever since."""
    a_sample = max(1, round(1 / window_s))
    trial, verdict = windows(Trial(), QUIET * a_sample, window_s)[0], None
    for count in range((LONGEST + AFTER + 2) * a_sample):
        cost = 1.5 if count else 1.0
        moved = count % every == 0 and (not waits or trial.is_measured(cost, window_s=window_s))
        trial, verdict = trial.after_window(cost, moved=moved, now_s=0.0, window_s=window_s)
        if verdict is not None:
            break
    assert verdict is Verdict.UNDO
    assert "+50 %" in trial.summary


def test_moves_that_go_on_for_long_wait_until_they_are_judged_and_go_on_if_they_helped() -> None:
    trial, moves, verdicts = run(Trial(), QUIET)[0], [], []
    for _ in range(3 * (LONGEST + AFTER)):
        moves.append(trial.is_measured(0.7))
        trial, verdict = trial.after_window(0.7, moved=moves[-1], now_s=0.0)
        verdicts.append(verdict)
    assert {Verdict.KEEP, None} == set(verdicts)
    assert sum(moves) >= 0.75 * len(moves)


def test_a_guest_that_can_no_longer_be_measured_is_not_kept_from_moving() -> None:
    trial = moved(run(Trial(), QUIET)[0])
    for _ in range(3 * LONGEST):
        assert trial.is_measured(None)
        trial = moved(trial, None)


def test_an_undo_that_fails_is_tried_after_twice_as_long_each_time_for_an_hour() -> None:
    """Then what is left stays: pages that cannot move must not keep all of the guest from moving."""
    trial, _ = run(moved(run(Trial(), QUIET)[0]), (1.2, 1.21, 1.19, 1.2))
    now_s, waits = 0.0, list[float]()
    assert trial.is_to_undo(now_s)
    assert not trial.undone(now_s).is_to_undo(now_s)
    while (trial := trial.not_undone(now_s)).is_undo_due:
        waits.append(trial.undo_at_s - now_s)
        assert not trial.is_to_undo(trial.undo_at_s - 1) and trial.is_to_undo(trial.undo_at_s)
        now_s = trial.undo_at_s
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0]
    assert trial.summary.startswith("not all undone: an instruction takes +20 %")
