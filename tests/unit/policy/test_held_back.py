"""What a plan says of a guest whose pages go back, or stay though moves would pay for themselves."""

from dataclasses import replace

import numpy as np

from tests.unit.policy.test_host_plan import guest, two_nodes
from tests.unit.policy.test_policy_auto import after, busy
from tests.unit.policy.views import NPAGES, bits, guest_view, host, moved
from vmplace.policy.guard import MOST_LOST_NS
from vmplace.policy.held_back import ALONE, NO_BUDGET, NO_ROOM, UNDONE, WAITS
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import HostView
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.policy.policy_auto import AutoPolicy

S = 1e9
SETTLED = "no move would pay for itself"


def wants(node: int | np.ndarray = 0, windows: int = 4) -> GuestView:
    """Return a guest of which node 2 uses a hundred pages that lie on node 0, unless ``node`` says else."""
    window = bits({2: range(200, 300), 0: range(100)}, range(200, 300))
    seen = busy(*[window] * windows)
    if isinstance(node, int):
        return seen
    there = guest_view([0, 2, 4, 6], node)
    assert seen.pages and there.pages
    ranges = tuple(
        replace(one, nodes=where.nodes)
        for one, where in zip(seen.pages.ranges, there.pages.ranges, strict=True)
    )
    return replace(seen, pages=replace(seen.pages, ranges=ranges))


def reasons(plan: PlacementPlan) -> list[str]:
    return [one.reason for one in plan.moves] + [one.reason for one in plan.stays]


def test_one_that_may_stake_nothing_yet_stays_for_that_reason() -> None:
    policy, poor = AutoPolicy(), replace(wants(), known_s=1e-6)
    plan = policy(Snapshot(host(), (poor,), None, 0.0, False, now_ns=S))
    assert plan.moves == () and reasons(plan) == [NO_BUDGET]


def test_one_for_whose_moves_there_is_no_budget_of_bytes_stays_for_that_reason() -> None:
    plan = after(wants(), budget_bytes=0)
    assert plan.moves == () and reasons(plan) == [NO_ROOM]


def test_one_for_which_nothing_would_pay_stays_for_that_reason() -> None:
    assert reasons(after(busy(*[bits({0: range(100)}, range(100))] * 4))) == [SETTLED]


def test_pages_that_go_back_after_a_loss_are_not_called_an_improvement() -> None:
    policy = AutoPolicy()
    there = moved(after(wants(), policy=policy))
    assert there == {2: set(range(200, 300))}
    assert not any(move.undoes for move in after(wants()).moves)
    node = np.zeros(NPAGES, int)
    node[200:300] = 2
    memory = policy.state.memories["db1"]
    lost = replace(memory, best_ns=memory.gained_ns + 2 * MOST_LOST_NS)
    policy.state = replace(policy.state, memories={"db1": lost})
    plans = [
        policy(Snapshot(host(), (wants(where),), None, 0.25, True, now_ns=now * S))
        for where, now in ((node, 13), (np.zeros(NPAGES, int), 13.001))
    ]
    assert moved(plans[0]) == {0: set(range(200, 300))}
    assert all(move.undoes for move in plans[0].moves)
    (back,) = reasons(plans[0])
    assert back.startswith("to node 0, where it was before") and back.endswith(UNDONE)
    assert "nearer" not in back and "save" not in back
    # It is left alone then.
    assert plans[1].moves == () and reasons(plans[1]) == [ALONE]


def test_one_whose_vcpus_are_about_to_be_tied_waits_for_them() -> None:
    used = guest(np.repeat([[0.0, 1e6]], 8, axis=0))
    seen = HostView(two_nodes(), np.full(2, 1e9), (used,), 100.0)
    assert HostPlanner(waiting=frozenset({"g"})).plan(seen).why == {"g": WAITS}
