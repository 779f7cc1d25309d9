"""Ties of vCPUs that wait for a CPU where they were tied: on trial, and once they were kept."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.tied_guests import EVERY, ON_1, asked, at, moved, stage_of, tried, view
from vmplace.agent.run_recorder import costs_of, plan_frame
from vmplace.errors import OutsideError
from vmplace.policy.gather_ties import followed
from vmplace.policy.gather_trial import GatherTrial
from vmplace.policy.gather_waits import WaitWatch, usual_waits
from vmplace.policy.gathering import EarlierTie, Gathering, Stage
from vmplace.policy.plan import CostSample, GuestView, PlacementPlan
from vmplace.sampling.recording_frames import PlannedGuest, checked_plan


@pytest.mark.parametrize(
    ("before", "after", "stage"),
    [(0.0, 0.02, Stage.KEPT), (0.0, 0.1, Stage.LOOSE), (0.1, 0.1, Stage.KEPT), (None, 0.1, Stage.KEPT)],
)
def test_the_time_in_which_vcpus_wait_for_a_cpu_counts(
    before: float | None, after: float, stage: Stage
) -> None:
    """Cycles fall by 2 %, as memory is near."""
    state = tried(view(waits=before))
    state = followed(state, at(110.0, moved(view(), costs=[0.98] * 6, until_s=110.0, waits=after)))
    assert stage_of(state, view()) is stage


def test_waits_that_come_and_go_do_not_hide_that_an_instruction_takes_more_cycles() -> None:
    guests = [view(), moved(view(), costs=[1.1, 1.1, 1.101, 1.1, 1.1, 1.1], until_s=110.0)]
    before, after = (
        replace(one, costs=tuple(c._replace(waits=0.6 * (i % 2)) for i, c in enumerate(one.costs)))
        for one in guests
    )
    assert stage_of(followed(tried(before), at(110.0, after)), before) is Stage.LOOSE


def kept_through(state: Gathering, *lives: tuple[GuestView, Sequence[float | None]]) -> Gathering:
    """Return the state after as many s as there are waits, a sample and a plan each."""
    for second in range(len(lives[0][1])):
        guests = []
        for guest, waits in lives:
            known = waits[: second + 1][-8:]
            samples = [
                CostSample(112.0 + second - back, 1.0, 1.0, one) for back, one in enumerate(reversed(known))
            ]
            guests.append(replace(guest, costs=tuple(reversed(samples))))
        state = followed(state, at(112.0 + second, *guests))
    return state


def kept(*guests: GuestView) -> Gathering:
    """Return ties of guests that never waited before."""
    ties = {who: one for guest in guests for who, one in asked(guest).ties.items()}
    watch = WaitWatch.of(0.0, 111.0)
    return Gathering({who: replace(one, stage=Stage.KEPT, waits=watch) for who, one in ties.items()})


@pytest.mark.parametrize(
    ("waits", "stage"),
    [
        ([0.2] * 3600, Stage.KEPT),
        ([0.4] * 400, Stage.LOOSE),
        ([1.0] * 100, Stage.LOOSE),
        # For two seconds of four.
        ([1.0, 1.0, 0.0, 0.0] * 70, Stage.LOOSE),
        # A job of a minute is no reason.
        ([1.0] * 60 + [0.0] * 600, Stage.KEPT),
        ([None] * 600, Stage.KEPT),
        ([None, None, 1.0] * 40, Stage.LOOSE),
    ],
)
def test_a_kept_tie_ends_if_its_vcpus_wait_for_somebody_for_long(
    waits: list[float | None], stage: Stage
) -> None:
    state = kept_through(kept(view()), (moved(view()), waits))
    assert stage_of(state, view()) is stage
    moves = state.moves(at(800.0, moved(view())))
    assert ["wait longer for a CPU" in move.reason for move in moves] == [True] * (stage is Stage.LOOSE)


def test_of_two_guests_that_wait_on_a_node_the_one_that_waits_most_goes_first() -> None:
    one, two = view(name="one", pid=1, vcpus=1), view(name="two", pid=2, vcpus=1)
    lives = (moved(one, vcpus=1), [1.5] * 130), (moved(two, vcpus=1), [1.2] * 130)
    state = kept_through(kept(one, two), *lives)
    assert [stage_of(state, guest) for guest in (one, two)] == [Stage.LOOSE, Stage.KEPT]


def test_of_a_tie_of_an_earlier_agent_the_first_minutes_tell_what_is_usual() -> None:
    earlier = EarlierTie({0: EVERY, 1: EVERY}, {0: ON_1, 1: ON_1})
    state = Gathering(earlier={view().topology.identity: earlier})
    state = followed(state, at(111.0, replace(moved(view()), costs=())))
    usual: list[float | None] = [0.3, 0.3, 0.5, 0.1] * 80
    assert stage_of(kept_through(state, (moved(view()), usual)), view()) is Stage.KEPT
    assert stage_of(kept_through(state, (moved(view()), usual + [1.5] * 120)), view()) is Stage.LOOSE


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mean", [0.05, 0.3, 0.6])
def test_vcpus_that_wait_now_and_then_as_they_always_did_stay(mean: float, seed: int) -> None:
    waits: list[float | None] = np.random.default_rng(seed).exponential(mean, 2000).tolist()
    floated = tuple(CostSample(float(at_s), 1.0, 1.0, one) for at_s, one in enumerate(waits[:8]))
    tie = kept(view()).ties[view().topology.identity]
    tie = replace(tie, waits=WaitWatch.of(usual_waits(floated), 111.0))
    state = kept_through(Gathering({view().topology.identity: tie}), (moved(view()), waits))
    assert stage_of(state, view()) is Stage.KEPT


def test_waits_with_which_a_tie_was_judged_end_it_no_more() -> None:
    """Memory is nearer, which is worth more than they cost."""
    nearer = moved(view(), costs=[0.6] * 6, until_s=110.0, waits=0.4)
    state = followed(tried(view()), at(110.0, nearer))
    assert stage_of(kept_through(state, (nearer, [0.4] * 900)), view()) is Stage.KEPT
    assert stage_of(kept_through(state, (nearer, [1.4] * 200)), view()) is Stage.LOOSE


def test_a_tie_on_trial_is_judged_by_its_trial_alone() -> None:
    one, two = view(name="one", pid=1, vcpus=1), view(name="two", pid=2, vcpus=1)
    state, late = kept(one, two), two.topology.identity
    trial = GatherTrial(late, begun_s=111.0, grew_s=111.0)
    state = replace(
        state, ties={**state.ties, late: replace(state.ties[late], stage=Stage.TRIED, trial=trial)}
    )
    lives = (moved(one, vcpus=1), [6.0] * 18), (moved(two, vcpus=1, there=0.2), [0.0] * 18)
    state = kept_through(state, *lives)
    assert [stage_of(state, guest) for guest in (one, two)] == [Stage.LOOSE, Stage.TRIED]


def test_nothing_is_decided_by_waits_of_a_time_in_which_nothing_may_be_changed() -> None:
    held = replace(moved(view()), may_change=False)
    state = kept_through(kept(view()), (held, [1.0] * 600))
    after = tuple(CostSample(712.0 + i, 1.0, 1.0, 1.0) for i in range(8))
    state = followed(state, at(720.0, replace(moved(view()), costs=after)))
    assert stage_of(state, view()) is Stage.KEPT


@pytest.mark.parametrize("is_gone", [True, False])
def test_one_that_cannot_be_given_back_now_does_not_keep_the_others_of_its_node(is_gone: bool) -> None:
    one, two = view(name="one", pid=1, vcpus=1), view(name="two", pid=2, vcpus=1)
    state, stuck = kept(one, two), one.topology.identity
    state = replace(state, ties={**state.ties, stuck: replace(state.ties[stuck], stage=Stage.LOOSE)})
    lives = [(moved(two, vcpus=1), [1.0] * 120)]
    if not is_gone:
        lives.append((replace(moved(one, vcpus=1), may_change=False), [0.0] * 120))
    assert stage_of(kept_through(state, *lives), two) is Stage.LOOSE


def test_recordings_keep_waits_and_those_that_never_had_any_are_read() -> None:
    samples = (CostSample(1.0, 2.0, 3.0, 0.25), CostSample(2.0, 2.0, 3.0, None))
    frame = plan_frame(at(3.0, replace(view(), costs=samples)), PlacementPlan())
    assert costs_of(checked_plan(frame).guests[0]) == samples
    assert costs_of(PlannedGuest("g", {}, costs=((1.0, 2.0, 3.0),))) == (CostSample(1.0, 2.0, 3.0),)


@pytest.mark.parametrize("sample", [CostSample(1.0, 2.0, 3.0, -1.0), CostSample(1.0, float("nan"))])
def test_recorded_costs_that_cannot_be_are_refused(sample: CostSample) -> None:
    frame = plan_frame(at(3.0, replace(view(), costs=(sample,))), PlacementPlan())
    with pytest.raises(OutsideError):
        checked_plan(frame)
