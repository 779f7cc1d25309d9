"""What may a guest lose at most, whatever its program does?  An adversary against the whole planner.

The adversary is a guest whose pages are used from one node, and then, at drawn moments, from the other
one.  What it loses is counted here, by the latencies of the host and the prices of moves alone.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.policy.test_host_plan import guest, two_nodes
from vmplace.policy import guard
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import HostView, Room

MS = 1e6
PAGES, LOOK_MS, VCPUS, THINK_NS, MLP = 60, 5.0, 4.0, 100.0, 2.0
FAR_NS, NEAR_NS = THINK_NS + 200 / MLP, THINK_NS + 100 / MLP
"""An access with the work before it, from afar and from near; nobody queues."""
WORST_OF_A_LOOK_NS = LOOK_MS * MS * (1 - NEAR_NS / FAR_NS)


def lost_ns(users: np.ndarray, node: np.ndarray) -> float:
    """Return by what a look would have been shorter with all pages on node 1, where they were first."""
    now, then = (np.where(users == where, NEAR_NS, FAR_NS).mean() for where in (node, np.ones(PAGES)))
    return float(LOOK_MS * MS * (1 - then / now))


def credit_ns(lived_ns: float) -> float:
    return min(guard.CREDIT_NS, guard.CREDIT_SHARE * lived_ns) + guard.TIME_SHARE * lived_ns


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([0.02, 0.1, 0.3, 1.0]), st.sampled_from([4e4, 4e5, 2e6]))
def test_a_guest_is_behind_doing_nothing_by_credit_slack_and_one_look_at_most(
    seed: int, often: float, move_ns: float
) -> None:
    chance, planner = np.random.default_rng(seed), HostPlanner()
    users, node, total_ns = chance.integers(0, 2, PAGES), np.ones(PAGES, np.int8), 0.0
    heat = np.zeros((PAGES, 2))
    for look in range(120):
        now_ns = look * LOOK_MS * MS
        recent = np.eye(2)[users] * LOOK_MS * 1e4
        heat = 0.9 * heat + recent
        seen = replace(
            guest(heat), node=node, recent=recent, worker=np.ones(2, np.bool_), windows=np.ones(PAGES, int)
        )
        (plan,) = planner.plan(HostView(two_nodes(), np.full(2, 1e9), (seen,), move_ns, 0.0, now_ns)).pages
        total_ns += int((plan != node).sum()) * move_ns / VCPUS
        node = plan.copy()
        if chance.random() < often:
            users = np.where(chance.random(PAGES) < chance.random(), 1 - users, users)
        total_ns += lost_ns(users, node)
        lived_ns = now_ns + LOOK_MS * MS
        allowed_ns = credit_ns(lived_ns) + guard.slack_ns(lived_ns) + WORST_OF_A_LOOK_NS
        assert total_ns <= allowed_ns + 1.0, (look, total_ns / MS, allowed_ns / MS)


def test_all_that_was_lost_goes_back_though_a_look_moves_only_a_part_of_it() -> None:
    """What the budget leaves away would else have to lose once more before it may go, too."""
    planner, node, away = HostPlanner(), np.zeros(PAGES, np.int8), []
    pages = guest(np.ones((PAGES, 1)) * [[1e-3, 0.0]])
    for look in range(9):
        host = HostView(
            two_nodes(), np.full(2, 1e9), (replace(pages, node=node),), 1e6, 0.0, look * LOOK_MS * MS
        )
        if look == 1:
            lost = guard.Memory(-1e9, 0.0, np.ones(PAGES, np.int8), best_ns=2 * guard.MOST_LOST_NS)
            planner.memories["g"] = lost
        (plan,) = planner.plan(host).pages
        node = node.copy()
        node[np.flatnonzero(plan != node)[:10]] = 1
        away.append(int((node == 0).sum()))
    assert away == [60, 50, 40, 30, 20, 10, 0, 0, 0]
    assert planner.memories["g"].returning is None


def test_a_return_that_finds_no_room_ends() -> None:
    planner, node = HostPlanner(), np.zeros(PAGES, np.int8)
    pages = replace(guest(np.ones((PAGES, 1)) * [[1e-3, 0.0]]), node=node)
    lost = guard.Memory(-1e9, 0.0, np.ones(PAGES, np.int8), best_ns=2 * guard.MOST_LOST_NS)
    planner.memories["g"] = lost
    wanted = [
        planner.plan(HostView(two_nodes(), np.full(2, 1e9), (pages,), 1e6, 0.0, look * LOOK_MS * MS)).pages[0]
        for look in range(guard.RETURN_LOOKS + 5)
    ]
    assert wanted[0].all() and not wanted[-1].any()


def test_a_return_ends_though_what_is_away_goes_up_and_down() -> None:
    """Mixed blocks count for the node of most of their pages, which may change to and fro."""
    memory, chance, looks = guard.Memory(0.0, 0.0, np.ones(PAGES, np.int8)), np.random.default_rng(3), 0
    memory = guard.on_its_way(memory, 0.0, 100.0)
    while memory.returning is not None and looks < 1000:
        memory, looks = guard.on_its_way(memory, 0.0, 100.0 + float(chance.integers(-25, 26))), looks + 1
    assert looks < 10 * guard.RETURN_LOOKS


def test_a_return_takes_its_part_of_a_plans_budget() -> None:
    """Else the others would be charged for moves that it leaves no budget for."""
    planner, node = HostPlanner(), np.zeros(PAGES, np.int8)
    pages = replace(guest(np.ones((PAGES, 1)) * [[1e-3, 0.0]]), node=node)
    planner.memories["g"] = guard.Memory(-1e9, 0.0, np.ones(PAGES, np.int8), best_ns=2 * guard.MOST_LOST_NS)
    room = Room(20.0, np.full(2, 1e9), np.full(2, 1e9))
    plan = planner.plan(HostView(two_nodes(), np.full(2, 1e9), (pages,), 1e6, room=room))
    assert int((plan.pages[0] != node).sum()) == 20
    assert plan.room is not None and plan.room.churn == 0
