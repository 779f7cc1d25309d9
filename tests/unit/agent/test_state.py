"""A plan without its pages tells of everything that the plan would change."""

import numpy as np

from tests.unit.agent.agent_world import HVA, World, guest
from vmplace.actuation.result import ActuationResult, Copies, MoveOutcome, ReplicaOutcome
from vmplace.agent.report import result_lines
from vmplace.agent.state import summary
from vmplace.policy.plan import Collapse, PlacementPlan, Replication, VcpuMove

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


def test_apply_tells_of_copies_and_vcpus():
    tied = VcpuMove("db1", dict.fromkeys(range(3), (0,)), (0, 1), 0, "they fit")
    done = ActuationResult(
        (MoveOutcome("db1", moved=2),), ("web: no",), (ReplicaOutcome("db1", replicated=16),), (tied,)
    )
    reported = "\n".join(result_lines(done))
    assert "moved_bytes=8192" in reported and "replicated_bytes=65536" in reported
    assert "pinned_vcpus=3" in reported and "web: no" in reported
