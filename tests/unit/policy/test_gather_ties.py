"""Ties of vCPUs, from being asked for to being kept or given back."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.unit.policy.tied_guests import EVERY, HOST, ON_1, asked, at, moved, stage_of, tried, view
from vmplace.policy.gather_ties import ASKED_S, FIRST_WAIT_S, GONE_S, KEPT_S, LOOSE_S, followed
from vmplace.policy.gathering import EarlierTie, Gathering, Stage, news
from vmplace.policy.plan import GuestSettings


def test_a_tie_is_asked_for_until_it_is_seen_and_then_tried() -> None:
    state = asked(view())
    for now_s in (101.0, 110.0):
        state = followed(state, at(now_s, view()))
        (move,) = state.moves(at(now_s, view()))
        assert (move.nid, move.cpus) == (1, {0: ON_1, 1: ON_1})
    state = followed(state, at(111.0, moved(view(), there=0.0)))
    assert stage_of(state, view()) is Stage.TRIED and not state.moves(at(111.0, view()))


def test_who_is_not_tied_when_asked_for_is_left_out_for_a_while_and_longer_each_time() -> None:
    state, waits = asked(view()), list[float]()
    for _ in range(3):
        now_s = 200.0 + sum(waits)
        state = replace(asked(view(), now_s=now_s), refused=state.refused)
        state = followed(state, at(now_s + ASKED_S, view()))
        assert not state.ties and not state.is_busy
        waits.append(state.refused[view().topology.identity].until_s - now_s - ASKED_S)
    assert waits == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]


def test_vcpus_get_their_cpus_back_until_they_have_them_if_an_instruction_takes_longer() -> None:
    slower = moved(view(), costs=[1.1, 1.1, 1.101, 1.1, 1.1, 1.1], until_s=110.0)
    state = tried(view())
    for now_s in (110.0, 120.0, 109.0 + LOOSE_S):
        state = followed(state, at(now_s, slower))
        (move,) = state.moves(at(now_s, slower))
        assert (move.nid, move.cpus) == (None, {0: EVERY, 1: EVERY}) and "10% longer" in move.reason
    # Once only, it counts as a failure.
    assert state.refused[view().topology.identity].until_s == 110.0 + FIRST_WAIT_S
    state, end_s = followed(state, at(109.5 + LOOSE_S, view())), 109.5 + LOOSE_S + GONE_S
    assert not state.moves(at(110.0, view())) and not followed(state, at(end_s, view())).ties


def test_what_cannot_be_given_back_is_tried_seldom_but_not_while_nothing_may_be_changed() -> None:
    """As where a tied guest's own CPUs are offline; it is never forgotten."""
    slower = moved(view(), costs=[1.1, 1.1, 1.101, 1.1, 1.1, 1.1], until_s=110.0)
    off_hours = replace(slower, may_change=False)
    later = followed(followed(tried(view()), at(110.0, slower)), at(110.0 + LOOSE_S, off_hours))
    assert later.moves(at(111.0 + LOOSE_S, slower))
    tries, state = list[float](), followed(tried(view()), at(110.0, slower))
    for now_s in (111.0 + step * 10.0 for step in range(round(4 * LOOSE_S / 10.0))):
        state = followed(state, at(now_s, slower))
        if state.moves(at(now_s, slower)):
            tries.append(now_s)
    assert stage_of(state, view()) is Stage.LOOSE
    often = [at_s for at_s in tries if at_s < 110.0 + LOOSE_S]
    assert len(often) == LOOSE_S / 10.0 and len(tries) - len(often) == 3


def test_a_look_that_shows_no_vcpus_tells_nothing() -> None:
    state = followed(tried(view()), at(103.0, view(ON_1, vcpus=0)))
    assert stage_of(state, view()) is Stage.TRIED and not state.moves(at(103.0, view(ON_1, vcpus=0)))
    earlier = Gathering(earlier={view().topology.identity: EarlierTie({0: EVERY}, {0: ON_1})})
    assert followed(earlier, at(103.0, view(ON_1, vcpus=0))).earlier


def test_what_somebody_else_changed_is_left_alone() -> None:
    state = followed(tried(view()), at(103.0, view((0, 1))))
    assert not state.moves(at(103.0, view((0, 1)))) and state.ties
    assert not followed(state, at(103.0 + GONE_S, view((0, 1)))).ties
    # What looked like it, as a CPU came back or went, is nothing once it is as it was.
    state = followed(state, at(104.0, moved(view())))
    assert followed(state, at(103.0 + GONE_S, view((0, 1)))).ties


@pytest.mark.parametrize("cpus", [(4, 5, 6), (5, 7)])
def test_cpus_that_are_offline_are_nobodys_change_and_others_are(cpus: tuple[int, ...]) -> None:
    now = view(cpus, there=1.0)
    host = replace(HOST, nodes=(HOST.nodes[0], replace(HOST.nodes[1], cpus=cpus)))
    assert stage_of(followed(tried(view()), at(103.0, now, host=host)), view()) is Stage.TRIED
    later = followed(followed(tried(view()), at(103.0, now)), at(103.0 + GONE_S, now))
    assert stage_of(later, view()) is None


def test_vcpus_that_somebody_ties_one_by_one_stay_so_and_the_others_get_their_cpus_back() -> None:
    now = moved(view())
    vcpus = (replace(now.topology.vcpus[0], cpus=(4,)), now.topology.vcpus[1])
    now = replace(now, topology=replace(now.topology, vcpus=vcpus))
    state = followed(tried(view()), at(103.0, now))
    (move,) = state.moves(at(103.0, now))
    assert (move.nid, move.cpus) == (None, {1: EVERY})


def test_a_vcpu_that_is_unplugged_or_plugged_is_nobodys_change() -> None:
    slower = [1.5] * 6
    for vcpus in (1, 2, 3):
        after = view(ON_1, there=1.0, vcpus=vcpus, costs=slower, until_s=110.0)
        state = followed(tried(view()), at(110.0, after))
        (move,) = state.moves(at(110.0, after))
        assert set(move.cpus) == set(range(min(vcpus, 2)))
    one = view(ON_1, there=1.0, vcpus=1)
    assert stage_of(followed(tried(view()), at(103.0, one)), view()) is Stage.TRIED


def test_a_guest_that_is_not_seen_for_a_moment_is_still_tied_and_one_that_ended_is_forgotten() -> None:
    state = followed(tried(view()), at(202.0))
    assert stage_of(state, view()) is Stage.TRIED and not state.moves(at(103.0))
    assert not followed(state, at(103.0 + KEPT_S)).ties
    # Another one of its name is another one.
    assert not followed(state, at(103.0 + KEPT_S, view(pid=99))).ties


@pytest.mark.parametrize(
    "settings",
    [
        GuestSettings(gathers=False),
        GuestSettings(allowed_nids=(0,)),
        GuestSettings(moves=False),
        GuestSettings(protected=True),
    ],
)
def test_an_operator_who_does_not_allow_it_any_more_gets_the_cpus_back(settings: GuestSettings) -> None:
    state = followed(tried(view()), at(110.0, moved(view(), costs=[1.0] * 6, until_s=110.0)))
    assert stage_of(followed(state, at(111.0, moved(view(), settings=settings))), view()) is Stage.LOOSE
    assert not followed(asked(view()), at(101.0, view(settings=settings))).ties
    # Tied in the very window in which it was forbidden.
    state = followed(asked(view()), at(101.0, moved(view(), settings=settings)))
    assert stage_of(state, view()) is Stage.LOOSE


@pytest.mark.parametrize(
    ("settings", "stage"),
    [
        (GuestSettings(), Stage.KEPT),
        (GuestSettings(gathers=False), Stage.LOOSE),
        (GuestSettings(gathers=False, place_vcpus=True), None),
    ],
)
def test_ties_of_an_earlier_agent_are_taken_up(settings: GuestSettings, stage: Stage | None) -> None:
    earlier = EarlierTie({0: EVERY, 1: EVERY}, {0: ON_1, 1: ON_1})
    state = Gathering(earlier={view().topology.identity: earlier})
    # It is not there at first.
    state = followed(state, at(100.0, view(name="other", pid=77)))
    state = followed(state, at(101.0, moved(view(), settings=settings)))
    assert stage_of(state, view()) is stage
    for move in state.moves(at(101.0, moved(view()))):
        assert move.cpus == {0: EVERY, 1: EVERY}


def test_the_last_tie_of_a_node_goes_if_others_that_have_no_other_node_come_to_its_cores() -> None:
    state = followed(tried(view()), at(110.0, moved(view(), costs=[1.0] * 6, until_s=110.0)))
    fits, crowds = (view(ON_1, name="new", pid=50, vcpus=count) for count in (2, 3))
    assert stage_of(followed(state, at(111.0, moved(view()), fits)), view()) is Stage.KEPT
    assert stage_of(followed(state, at(111.0, moved(view()), crowds)), view()) is Stage.LOOSE


def test_ties_of_a_full_node_are_given_back_one_after_the_other() -> None:
    """As long as the first is not seen to be, as in a schedule's off hours."""
    one, two = view(name="one", pid=1), view(name="two", pid=2)
    ties = {**asked(one).ties, **asked(two, now_s=101.0).ties}
    state = Gathering({who: replace(tie, stage=Stage.KEPT) for who, tie in ties.items()})
    crowd = view(ON_1, name="new", pid=50, vcpus=2)
    for second in range(3):
        state = followed(state, at(111.0 + second, moved(one), moved(two), crowd))
        assert [tie.stage for _, tie in sorted(state.ties.items())] == [Stage.KEPT, Stage.LOOSE]
    assert two.topology.identity in state.left_out(120.0)


def test_a_failure_is_remembered_for_an_hour() -> None:
    state = followed(asked(view()), at(100.0 + ASKED_S, view()))
    assert followed(state, at(3000.0, view())).refused and not followed(state, at(9000.0, view())).refused


def test_the_log_has_a_line_for_each_stage() -> None:
    slower = moved(view(), costs=[1.1] * 6, until_s=110.0)
    states = [Gathering(), asked(view()), tried(view())]
    states.append(followed(states[-1], at(110.0, slower)))
    states.append(followed(states[-1], at(111.0, view())))
    states.append(followed(states[-1], at(111.0 + GONE_S, view())))
    lines = [line for before, after in pairwise(states) for line in news(before, after)]
    assert [line.split()[:3] for line in lines] == [
        ["guest=g", f"gather={stages}", "nid=1"]
        for stages in ("none->asked", "asked->tried", "tried->loose", "loose->none")
    ]
    assert "10% longer" in lines[2]
