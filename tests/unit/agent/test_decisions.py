"""What is remembered of a decision: what was expected of it, and what became of it."""

import numpy as np
from msgspec.structs import replace

from tests.unit.agent.agent_world import HVA, NPAGES, World, guest
from tests.unit.agent.test_limits import move
from vmplace.actuation.result import ActuationResult, MoveOutcome, ReplicaOutcome
from vmplace.agent.decisions import GuestOutcome, done_by_guest, remember
from vmplace.agent.limits import CUT, GuestLimits, limited
from vmplace.agent.state import Decision, PlanSummary, VcpuSummary, summary
from vmplace.policy.options import Option, Weighing
from vmplace.policy.plan import GuestSettings, PlacementPlan, Replication, Stay, VcpuMove

WEIGHING = Weighing("db1", Option("stay", 0, 0, 0, 0.0, 0.0, 0.0))
PLAN = summary(PlacementPlan(stays=(Stay("db1", "it rests well"),), weighings=(WEIGHING,)))
TIED = VcpuMove("db1", {0: (4,), 1: (5,)}, (0, 1), 1, "they fit")


def remembered(*done: GuestOutcome, plan: PlanSummary = PLAN) -> list[Decision]:
    """Return the decisions that are kept of a guest for which this was done, window by window."""
    agent = World([guest("db1")]).agent()
    agent.run(windows=1)
    tracked = agent.roster.get("db1")
    assert tracked is not None
    tracked.decisions.clear()
    for window, one in enumerate(done):
        remember(tracked, window, 0.0, plan, one)
    return list(tracked.decisions)


def test_a_decision_has_what_was_weighed():
    (one,) = remembered(GuestOutcome(), GuestOutcome())
    assert one.weighing == WEIGHING


def test_copies_made_dropped_and_vcpus_tied_are_news_each():
    copies, tied = ReplicaOutcome("db1", replicated=2, left=3), VcpuSummary("db1", (0, 1), (0, 1), 1, "")
    made, dropped, placed = remembered(
        GuestOutcome(copies=copies), GuestOutcome(dropped_pages=2), GuestOutcome(vcpus=(tied,))
    )
    assert (made.copies, dropped.dropped_bytes, placed.vcpus) == (copies, 8192, (tied,))


def test_copies_that_were_there_already_are_no_news():
    assert len(remembered(*[GuestOutcome(copies=ReplicaOutcome("db1"))] * 3)) == 1


def test_what_was_done_is_sorted_by_guest():
    result = ActuationResult(
        (MoveOutcome("a", moved=1),), (), (ReplicaOutcome("b", replicated=1),), (TIED,), {"a": 5}
    )
    done = done_by_guest(result)
    assert done["a"] == GuestOutcome(MoveOutcome("a", moved=1), dropped_pages=5)
    assert done["b"].copies == ReplicaOutcome("b", replicated=1)
    assert [(one.vcpu_ids, one.nid) for one in done["db1"].vcpus] == [((0, 1), 1)]
    assert result.pinned_vcpus == 2


def test_figures_of_a_plan_that_the_guests_policy_cuts_are_not_taken_for_what_is_left():
    plan = PlacementPlan((move([1], [1]),), weighings=(WEIGHING, replace(WEIGHING, guest="other")))
    limits = {"db1": GuestLimits(guest("db1"), GuestSettings(moves=False))}
    assert [one.unknown for one in limited(plan, limits).weighings] == [CUT, ""]


def test_a_plan_of_copies_alone_promises_what_they_make_local():
    """All accesses come from node 1, and all pages lie on node 0."""
    runs = np.array([HVA], np.uint64), np.array([NPAGES], np.int32)
    copies = Replication("db1", *runs, (0, 1), "read", saved_ns=5e6, from_pages={0: NPAGES, 1: 0})
    world = World([guest("db1")], policy=lambda _: PlacementPlan(replications=(copies,)))
    agent = world.agent()
    agent.run(windows=1)
    (one,) = agent.roster
    assert one.expected_lar == 1.0 and one.decisions[-1].expected_lar == 1.0
    assert agent.last_plan.copies[0].saved_ns == 5e6


def test_a_plan_of_one_guest_has_that_ones_figures_only():
    plan = summary(PlacementPlan(weighings=(WEIGHING, replace(WEIGHING, guest="other"))))
    assert plan.of("db1").weighings == {"db1": WEIGHING} and plan.of("nobody").weighings == {}
