"""Memory of guests whose vCPUs are tied: what follows them, and what waits for them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.test_host_plan import guest as evidence
from tests.unit.policy.test_host_plan import two_nodes
from tests.unit.policy.test_policy_auto import after, busy
from tests.unit.policy.tied_guests import asked, at, moved, tried, view
from tests.unit.policy.views import bits
from vmplace.policy import guard
from vmplace.policy.gathering import LEAVING_S, Gathering, Stage
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import HostView
from vmplace.policy.plan import GuestSettings, GuestView, Mode, PlacementPlan
from vmplace.policy.policy_auto import AutoPolicy, _granted, by_pages
from vmplace.policy.vcpu_plan import following_ns


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
