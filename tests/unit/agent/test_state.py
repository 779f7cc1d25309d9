"""A plan without its pages tells of everything that the plan would change."""

import msgspec
import numpy as np

from tests.unit.agent.agent_world import HVA, World, guest
from vmplace.actuation.result import ActuationResult, Copies, MoveOutcome, ReplicaOutcome
from vmplace.agent.config import GuestRule
from vmplace.agent.orders import Order
from vmplace.agent.report import result_lines
from vmplace.agent.state import summary
from vmplace.policy.options import Option, Weighing
from vmplace.policy.plan import Collapse, GuestSettings, Mode, PlacementPlan, Replication, VcpuMove
from vmplace.policy.unneeded_copies import ON_ONE_NODE

RUNS = np.array([HVA], np.uint64), np.array([16], np.int32)
COPIES = PlacementPlan(
    replications=(Replication("db1", *RUNS, (0, 1), "nodes 0, 1 only read them"),),
    collapses=(Collapse("db1", *RUNS, "they are written"),),
)


def test_copies_and_their_reasons_are_reported():
    reported = summary(COPIES).of("db1")
    assert [(one.pages_bytes, one.nids) for one in reported.copies] == [(16 * 4096, (0, 1))]
    assert [one.pages_bytes for one in reported.collapses] == [16 * 4096]
    assert summary(COPIES).reasons("db1") == ("copies: nodes 0, 1 only read them",)
    assert summary(COPIES).of("other").copies == ()
    drop = Collapse("db1", *RUNS, ON_ONE_NODE.format(1), is_all=True, copied_bytes=8192)
    lone = PlacementPlan(collapses=(drop,))
    assert [one.pages_bytes for one in summary(lone).collapses] == [8192]
    assert summary(lone).reasons("db1") == (
        "no copies: its vCPUs run on node 1 alone, and copies serve several nodes",
    )


def state_after(plan: PlacementPlan, **copies: int) -> str:
    copied = {name: Copies(size) for name, size in copies.items()}
    world = World([guest("db1")], policy=lambda snapshot: plan, copied=copied)
    agent = world.agent()
    agent.run(windows=1)
    return agent.status.guests["db1"].state


def test_a_guest_that_is_to_get_copies_is_not_settled():
    assert state_after(PlacementPlan()) == "settled"
    assert state_after(COPIES) == "moving"


def test_a_guest_that_has_its_copies_is_settled():
    assert state_after(COPIES, db1=16 * 4096) == "settled"


def test_apply_prints_copies_and_vcpus():
    tied = VcpuMove("db1", dict.fromkeys(range(3), (0,)), (0, 1), 0, "they fit")
    done = ActuationResult(
        (MoveOutcome("db1", moved=2),), ("web: no",), (ReplicaOutcome("db1", replicated=16),), (tied,)
    )
    reported = "\n".join(result_lines(done))
    assert "moved_bytes=8192" in reported and "replicated_bytes=65536" in reported
    assert "guest=db1 vcpus=0,1,2 nid=0,1->0" in reported and "web: no" in reported


def test_apply_prints_copies_that_were_refused_left_or_dropped():
    done = ActuationResult(
        replicas=(ReplicaOutcome("db1", left=7, refused={"copies short-lived": 900}), ReplicaOutcome("web")),
        dropped={"db1": 100, "web": 0},
    )
    assert result_lines(done)[:2] == (
        "guest=db1 replicated_bytes=0 left_pages=7 copies_short-lived_pages=900",
        "guest=db1 dropped_bytes=409600",
    )
    assert not any("web" in line for line in result_lines(done))


def test_apply_prints_what_the_plan_promised_those_it_changes():
    weighed = Weighing("db1", Option("planned", 8192, 0, 0, 2e6, 9e6, 0.025))
    plan = summary(PlacementPlan(weighings=(weighed, msgspec.structs.replace(weighed, guest="web"))))
    done = ActuationResult((MoveOutcome("db1", moved=2),))
    (promise,) = result_lines(done, plan, {"db1": 0.75, "web": 0.5})[1:]
    assert promise == (
        "guest=db1 expected_saved_ms=9.0 expected_price_ms=2.0 expected_saved_share=0.0250 expected_lar=0.75"
    )


def test_an_order_to_apply_is_answered_with_what_was_promised():
    world = World([guest("db1")])
    agent = world.agent(GuestRule("db1", GuestSettings(Mode.ADVISE)))
    order = Order("apply", "db1")
    agent.run(windows=1)
    agent.inbox.submit(order)
    agent.run(windows=2)
    moved, promised = order.answer.result(0)
    assert "moved_bytes=4194304" in moved
    assert promised.startswith("guest=db1 expected_lar=1.00")
