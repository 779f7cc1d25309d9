"""Ties of vCPUs, from being asked for to being kept or given back."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.unit.policy.test_host_plan import guest as evidence
from tests.unit.policy.test_host_plan import two_nodes
from tests.unit.policy.test_policy_auto import after, busy
from tests.unit.policy.views import GIB, bits, guest_view
from vmplace.agent.cost_samples import CostSamples
from vmplace.policy import guard
from vmplace.policy.gather_choice import tie
from vmplace.policy.gather_ties import ASKED_S, FIRST_WAIT_S, GONE_S, KEPT_S, LOOSE_S, followed
from vmplace.policy.gather_trial import FRESH_S, STUCK_S, UNJUDGED_S, GatherTrial, fresh
from vmplace.policy.gathering import LEAVING_S, EarlierTie, Gathering, Stage, Tie, news
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import HostView
from vmplace.policy.plan import CostSample, GuestSettings, GuestView, Mode, PlacementPlan, Snapshot
from vmplace.policy.planner_view import _only_from
from vmplace.policy.policy_auto import AutoPolicy, _granted, by_pages
from vmplace.policy.vcpu_places import free_cores, may_tie, vcpu_nodes
from vmplace.policy.vcpu_plan import following_ns
from vmplace.sampling.guest_cost import MemoryRate
from vmplace.topology.guest import Movability
from vmplace.topology.host import HostTopology, Node

EVERY = tuple(range(8))
HOST = HostTopology(
    tuple(Node(nid, tuple(range(4 * nid, 4 * nid + 4)), 4 * GIB, 3 * GIB) for nid in (0, 1)),
    {(a, b): 10 if a == b else 20 for a in (0, 1) for b in (0, 1)},
)
ON_1 = (4, 5, 6, 7)
Costs = list[float]


def view(
    cpus: tuple[int, ...] = EVERY,
    *,
    name: str = "g",
    pid: int = 42,
    costs: Costs | None = None,
    until_s: float = 100.0,
    there: float = 0.0,
    accesses: float = 1.0,
    waits: float | None = 0.0,
    vcpus: int = 2,
    settings: GuestSettings | None = None,
) -> GuestView:
    """Return a guest whose samples end at ``until_s``, with a share of its memory on node 1."""
    nodes = (np.arange(4096) < there * 4096).astype(np.int8)
    one = guest_view([0] * vcpus, nodes, settings=settings)
    threads = tuple(replace(vcpu, cpus=cpus) for vcpu in one.topology.vcpus)
    topology = replace(one.topology, name=name, pid=pid, vcpus=threads)
    assert one.pages
    known = [1.0] * 4 if costs is None else costs
    samples = tuple(
        CostSample(until_s - len(known) + 1 + i, cost, accesses, waits) for i, cost in enumerate(known)
    )
    pages = replace(one.pages, guest=name, nids=(0, 1))
    return replace(one, topology=topology, pages=pages, costs=samples, dram_per_us=10.0, cpus=2.0)


def at(now_s: float, *guests: GuestView, host: HostTopology = HOST) -> Snapshot:
    return Snapshot(host, guests, now_ns=now_s * 1e9)


def asked(guest: GuestView, *others: GuestView, now_s: float = 100.0) -> Gathering:
    """Return what is asked for: the guest's vCPUs on node 1."""
    move = tie(at(now_s, guest, *others), guest, 1, 0.1, 1e6)
    before = {vcpu.vcpu_id: vcpu.cpus for vcpu in guest.topology.vcpus}
    trial = GatherTrial.of(guest, others, now_s)
    return Gathering({guest.topology.identity: Tie(move, before, now_s, now_s, now_s, trial=trial)})


def stage_of(state: Gathering, guest: GuestView) -> Stage | None:
    one = state.ties.get(guest.topology.identity)
    return one.stage if one else None


def tried(guest: GuestView, *others: GuestView) -> Gathering:
    """Return the tie as its memory has followed, at 102 s."""
    state = asked(guest, *others)
    for now_s in (101.0, 102.0):
        state = followed(state, at(now_s, moved(guest), *others))
    return state


def moved(guest: GuestView, there: float = 1.0, **more: object) -> GuestView:
    """Return the guest with its vCPUs on node 1, and its memory."""
    return view(ON_1, name=guest.topology.name, pid=guest.topology.pid, there=there, **more)  # type: ignore[arg-type]


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


def test_a_tie_is_kept_if_an_instruction_takes_no_longer() -> None:
    state = followed(tried(view()), at(110.0, moved(view(), costs=[1.0] * 6, until_s=110.0)))
    assert stage_of(state, view()) is Stage.KEPT and not state.is_busy and not state.refused


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


def test_memory_that_may_not_follow_now_is_waited_for() -> None:
    off_hours = replace(moved(view(), there=0.2, costs=[1.5] * 6, until_s=130.0), may_change=False)
    state = followed(asked(view()), at(101.0, off_hours))
    for now_s in (110.0, 130.0, 900.0):
        state = followed(state, at(now_s, off_hours))
        assert stage_of(state, view()) is Stage.TRIED


def test_a_look_that_shows_no_vcpus_tells_nothing() -> None:
    state = followed(tried(view()), at(103.0, view(ON_1, vcpus=0)))
    assert stage_of(state, view()) is Stage.TRIED and not state.moves(at(103.0, view(ON_1, vcpus=0)))
    earlier = Gathering(earlier={view().topology.identity: EarlierTie({0: EVERY}, {0: ON_1})})
    assert followed(earlier, at(103.0, view(ON_1, vcpus=0))).earlier


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


def test_vcpus_that_float_are_where_touches_come_from() -> None:
    assert vcpu_nodes(HOST, view(vcpus=4).topology, np.array([30.0, 10.0])).tolist() == [0, 0, 0, 1]
    assert vcpu_nodes(HOST, view(vcpus=4).topology, np.zeros(2)).tolist() == [0, 0, 1, 1]
    assert vcpu_nodes(HOST, view(ON_1).topology, np.array([30.0, 0.0])).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("guest", "nodes"),
    [
        (view(), [True, True]),
        (view(settings=GuestSettings(allowed_nids=(1,))), [False, True]),
        (view((0, 1, 4)), [False, False]),
        (view((0, 4, 5, 6, 7)), [False, True]),
        (view(ON_1), None),
        (view(settings=GuestSettings(gathers=False)), None),
        (view(settings=GuestSettings(moves=False)), None),
        (view(settings=GuestSettings(huge_pages=False)), None),
        (view(settings=GuestSettings(place_vcpus=True)), None),
        (view(settings=GuestSettings(protected=True)), None),
        (replace(view(), may_change=False), None),
        (replace(view(), dram_per_us=None), None),
        (view(costs=[1.0] * 3), None),
        (view(until_s=99.9 - FRESH_S), None),
        (view(vcpus=0), None),
    ],
)
def test_vcpus_may_be_tied_if_what_comes_of_it_is_allowed_and_can_be_judged(
    guest: GuestView, nodes: list[bool] | None
) -> None:
    found = may_tie(HOST, guest, 100.0)
    assert (None if found is None else found.tolist()) == nodes


@pytest.mark.parametrize(("gap_s", "count"), [(FRESH_S, 6), (FRESH_S + 1, 4)])
def test_samples_before_a_gap_tell_of_something_else(gap_s: float, count: int) -> None:
    guest = view()
    before = tuple(CostSample(guest.costs[0].at_s - gap_s - i, 1.0) for i in (1, 0))
    assert len(fresh(replace(guest, costs=(*before, *guest.costs)), 100.0)) == count


def test_memory_that_cannot_follow_keeps_vcpus_where_they_may_run() -> None:
    fixed = view()
    ram = tuple(replace(one, movability=Movability.PINNED) for one in fixed.topology.ram)
    assert may_tie(HOST, replace(fixed, topology=replace(fixed.topology, ram=ram)), 100.0) is None


def test_a_node_has_the_physical_cores_that_others_leave() -> None:
    pairs = {cpu: (cpu & ~1, cpu | 1) for cpu in range(8)}
    host = replace(HOST, smt_siblings=pairs)
    assert free_cores(HOST, []).tolist() == [4.0, 4.0]
    assert free_cores(host, [view((0, 1)), view(vcpus=1)]).tolist() == [0.0, 1.5]


def test_accesses_come_from_where_vcpus_may_run_by_now() -> None:
    heat = np.array([[8.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    for worker, expected in (
        ([False, True, False], [[0, 10, 0], [0, 0, 0]]),
        ([True, True, False], [[9, 1, 0], [0, 0, 0]]),
        ([True, True, True], [[8, 0, 2], [0, 0, 0]]),
        ([False, False, False], [[8, 0, 2], [0, 0, 0]]),
    ):
        some = heat.copy()
        _only_from(np.array(worker), some)
        assert some.tolist() == expected


def test_costs_of_windows_make_samples_and_a_window_without_one_ends_none() -> None:
    costs, rate = CostSamples(), MemoryRate(2.0, 10.0)
    for now_s, cost in ((0.5, 1.0), (1.0, 3.0), (1.5, 1.0), (2.0, None), (2.5, 1.0)):
        costs.add(cost, rate, 0.5, 1.0, now_s)
    assert [*costs.kept] == [CostSample(1.0, 2.0, 10.0)]
    costs.add(1.0, MemoryRate(None, 10.0), 2.0, 1.0, 5.0)
    assert costs.kept[-1].accesses < costs.kept[0].accesses
    for now_s, waits in ((6.0, 0.1), (7.0, 0.4)):
        costs.add(2.0, MemoryRate(1.0, 10.0, waits), 0.5, 1.0, now_s)
    assert costs.kept[-1].waits == 0.25
    for now_s, known in ((8.0, None), (9.0, 0.4), (10.0, None), (11.0, None)):
        costs.add(2.0, MemoryRate(1.0, 10.0, known), 0.5, 1.0, now_s)
    assert [one.waits for one in costs.kept][-2:] == [0.4, None]


def test_pages_stay_while_vcpus_are_about_to_move() -> None:
    away = evidence([[9.0, 0.0]] * 8, node=1)
    host = HostView(two_nodes(), np.full(2, 1e9), (away,), 0.0, now_ns=1e9)
    waiting = frozenset((away.name,))
    moving, staying = HostPlanner().plan(host), HostPlanner(waiting=waiting).plan(host)
    assert (moving.pages[0] == 0).any() and (staying.pages[0] == 1).all()


def test_what_is_staked_on_memory_that_follows_is_granted_once() -> None:
    here = evidence([[9.0, 0.0]] * 8, node=1)
    host = HostView(two_nodes(), np.full(2, 1e9), (here,), 1000.0, now_ns=1e9)
    memories = guard.remembered({}, host)
    state = tried(view())
    (who,) = state.ties
    move = replace(state.ties[who].move, guest=here.name)
    state = replace(state, ties={who: replace(state.ties[who], move=move)})
    granted, state = _granted(memories, state, host)
    assert granted[here.name].spent_ns == -2 * following_ns(host, here) < 0
    again, _ = _granted(granted, state, host)
    assert again[here.name].spent_ns == granted[here.name].spent_ns


def test_no_page_of_a_guest_moves_in_a_plan_that_asks_for_its_vcpus() -> None:
    """The control: without the tie that is asked for, its pages go to the node that uses them."""
    guest = busy(*[bits({1: range(300)}, range(300))] * 4)
    policy = AutoPolicy()
    (tie,) = asked(view()).ties.values()
    tie = replace(tie, move=replace(tie.move, guest=guest.topology.name))
    policy.state = replace(policy.state, gathering=Gathering({guest.topology.identity: tie}))
    assert after(guest).moves and not after(guest, policy=policy).moves


def placed(state: Gathering, guest: GuestView, now_s: float = 102.0) -> PlacementPlan:
    """Return the plan for a guest of which nothing tells but where vCPUs run."""
    policy = AutoPolicy()
    policy.state = replace(policy.state, gathering=state)
    return policy(at(now_s, guest))


def in_stage(stage: Stage) -> Gathering:
    (tie,) = asked(view()).ties.values()
    tie = replace(tie, stage=stage, since_s=101.0, seen_s=101.0)
    return Gathering({view().topology.identity: tie})


def test_no_memory_goes_on_to_the_node_that_vcpus_are_about_to_leave() -> None:
    follows, leaves = placed(in_stage(Stage.TRIED), moved(view(), there=0.0)), in_stage(Stage.LOOSE)
    assert follows.moves and by_pages(follows) == {"g"}
    assert not placed(leaves, moved(view(), there=0.0)).moves
    # What the kernel refuses for so long is as good as tied.
    assert placed(leaves, moved(view(), there=0.0), 101.0 + LEAVING_S).moves


def test_memory_waits_for_no_vcpus_that_may_not_be_changed_or_are_gone() -> None:
    leaves, there = in_stage(Stage.LOOSE), moved(view(), there=0.0)
    assert placed(leaves, replace(there, may_change=False)).moves
    manual = replace(there, settings=GuestSettings(mode=Mode.MANUAL))
    assert [one.reason for one in placed(leaves, manual).stays] == [
        "the operator places this guest by hand (mode manual)"
    ]
    # Somebody else gave them CPUs of the node by now.
    assert placed(leaves, view((4, 5), there=0.0)).moves


@pytest.mark.parametrize("stage", [Stage.TRIED, Stage.LOOSE])
def test_a_guest_that_was_started_again_has_no_tie_of_the_one_before(stage: Stage) -> None:
    again = moved(view(pid=99), there=0.0)
    plan = placed(in_stage(stage), again)
    assert plan.moves and not by_pages(plan)
