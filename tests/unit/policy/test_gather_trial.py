"""Did it help that vCPUs were tied?  Judged by what an instruction takes, of the guest and its neighbours."""

from dataclasses import replace

import pytest

from tests.unit.policy.tied_guests import HOST, asked, at, moved, stage_of, tried, view
from vmplace.policy.gather_ties import followed
from vmplace.policy.gather_trial import FRESH_S, STUCK_S, UNJUDGED_S, fresh
from vmplace.policy.gathering import Stage
from vmplace.policy.plan import CostSample
from vmplace.topology.host import HostTopology


def test_a_tie_is_kept_if_an_instruction_takes_no_longer() -> None:
    state = followed(tried(view()), at(110.0, moved(view(), costs=[1.0] * 6, until_s=110.0)))
    assert stage_of(state, view()) is Stage.KEPT and not state.is_busy and not state.refused


def test_memory_that_may_not_follow_now_is_waited_for() -> None:
    off_hours = replace(moved(view(), there=0.2, costs=[1.5] * 6, until_s=130.0), may_change=False)
    state = followed(asked(view()), at(101.0, off_hours))
    for now_s in (110.0, 130.0, 900.0):
        state = followed(state, at(now_s, off_hours))
        assert stage_of(state, view()) is Stage.TRIED


def test_the_costs_of_the_time_in_which_memory_followed_count_for_nothing() -> None:
    """It is slower while its memory is remote; then five samples are as before."""
    state = asked(view())
    for second, there in enumerate((0.1, 0.3, 0.6, 0.8, 1.0), 101):
        state = followed(state, at(second, moved(view(), there=there, costs=[2.0] * 8, until_s=second)))
        assert stage_of(state, view()) is Stage.TRIED
    state = followed(state, at(110.0, moved(view(), costs=[2.0] * 4 + [1.0] * 5, until_s=110.0)))
    assert stage_of(state, view()) is Stage.KEPT


def test_memory_that_follows_no_more_is_judged_where_it_is() -> None:
    state = followed(asked(view()), at(101.0, moved(view(), there=0.2)))
    state = followed(state, at(101.0 + STUCK_S, moved(view(), there=0.2)))
    late_s = 110.0 + STUCK_S
    state = followed(state, at(late_s, moved(view(), there=0.2, costs=[1.5] * 6, until_s=late_s)))
    assert stage_of(state, view()) is Stage.LOOSE


def test_what_nobody_can_judge_is_given_back() -> None:
    state = followed(tried(view()), at(102.0 + UNJUDGED_S, moved(view(), costs=[])))
    assert stage_of(state, view()) is Stage.LOOSE


def test_a_guest_that_does_other_work_is_not_judged_and_neighbours_that_do_are_passed_over() -> None:
    other = moved(view(), costs=[4.0] * 6, until_s=110.0, accesses=3.0)
    state = followed(tried(view()), at(110.0, other))
    assert stage_of(state, view()) is Stage.TRIED
    assert stage_of(followed(state, at(102.0 + UNJUDGED_S, other)), view()) is Stage.LOOSE
    beside = view(name="beside", pid=43)
    busier = view(name="beside", pid=43, costs=[4.0] * 6, until_s=110.0, accesses=3.0)
    state = followed(tried(view(), beside), at(110.0, moved(view(), costs=[1.0] * 6, until_s=110.0), busier))
    assert stage_of(state, view()) is Stage.KEPT


@pytest.mark.parametrize(("cost", "protected"), [(1.04, False), (1.2, False), (1.02, True), (1.04, True)])
def test_neighbours_that_are_harmed_count_but_not_for_a_trifle(cost: float, protected: bool) -> None:
    """More than 6 % of a neighbour, and more than 3 % of a protected one."""
    beside = view(name="beside", pid=43)
    state = tried(view(), beside)
    harmed = view(name="beside", pid=43, costs=[cost] * 6, until_s=110.0)
    harmed = replace(harmed, settings=replace(harmed.settings, protected=protected))
    state = followed(state, at(110.0, moved(view(), costs=[0.9] * 6, until_s=110.0), harmed))
    is_harm = cost > (1.03 if protected else 1.06)
    assert stage_of(state, view()) is (Stage.LOOSE if is_harm else Stage.KEPT)


def test_a_neighbour_that_was_tied_elsewhere_says_nothing() -> None:
    """It may not run on the node any more: what harms it now is something else."""
    state = tried(view(), view(name="beside", pid=43))
    away = view((0, 1, 2, 3), name="beside", pid=43, costs=[2.0] * 6, until_s=110.0)
    state = followed(state, at(110.0, moved(view(), costs=[0.9] * 6, until_s=110.0), away))
    assert stage_of(state, view()) is Stage.KEPT


def test_a_node_that_goes_in_the_middle_of_a_trial_blames_nobody() -> None:
    """Where the node is gone, its CPUs are nobody's, and a neighbour's plan must not fail by it."""
    one_node = HostTopology(HOST.nodes[:1], {(0, 0): 10})
    state = followed(
        tried(view(), view(name="beside", pid=43)), at(103.0, view(name="beside", pid=43), host=one_node)
    )
    assert stage_of(state, view()) is Stage.TRIED
    state = followed(state, at(104.0, moved(view()), view(name="beside", pid=43)))
    assert stage_of(state, view()) is Stage.TRIED


@pytest.mark.parametrize(("gap_s", "count"), [(FRESH_S, 6), (FRESH_S + 1, 4)])
def test_samples_before_a_gap_tell_of_something_else(gap_s: float, count: int) -> None:
    guest = view()
    before = tuple(CostSample(guest.costs[0].at_s - gap_s - i, 1.0) for i in (1, 0))
    assert len(fresh(replace(guest, costs=(*before, *guest.costs)), 100.0)) == count
