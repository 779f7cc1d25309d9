"""A plan is cut down to the guests that may be changed, whatever it has for them."""

import numpy as np

from vmplace.policy.plan import Collapse, Move, PlacementPlan, Replication, Stay, VcpuMove

HVA, NPAGES = np.zeros(1, np.uint64), np.ones(1, np.int32)
NAMES = ("db1", "db2")


def test_only_what_may_be_changed_is_left() -> None:
    nids = np.zeros(1, np.int16)
    plan = PlacementPlan(
        tuple(Move(name, HVA, np.ones(1, np.uint16), nids, nids, "reason") for name in NAMES),
        tuple(Stay(name, "reason") for name in NAMES),
        tuple(Replication(name, HVA, NPAGES, (0, 1), "reason") for name in NAMES),
        tuple(Collapse(name, HVA, NPAGES, "reason") for name in NAMES),
        tuple(VcpuMove(name, {0: (1,)}, (0,), 1, "reason") for name in NAMES),
    )
    left = plan.only("db2".__eq__)
    for kind in (left.moves, left.replications, left.collapses, left.vcpu_moves):
        assert [one.guest for one in kind] == ["db2"]
    assert not left.is_empty and plan.only("db3".__eq__).is_empty
    assert left.stays == plan.stays


def test_vcpus_may_float_again_where_nothing_else_may_be_changed() -> None:
    kinds = (("db1", 1), ("db2", None))
    tied, loose = (VcpuMove(name, {0: (1,)}, (0,), nid, "reason") for name, nid in kinds)
    plan = PlacementPlan(vcpu_moves=(tied, loose))
    assert plan.only(lambda _: False, lambda _: True).vcpu_moves == (loose,)
    assert plan.only(lambda _: True, lambda _: False).vcpu_moves == (tied,)


def test_copies_may_go_where_nothing_else_may_be_changed() -> None:
    plan = PlacementPlan(collapses=(Collapse("db1", HVA, NPAGES, "reason"),))
    assert plan.only(lambda _: False, lambda _: True).collapses == plan.collapses
    assert plan.only(lambda _: True, lambda _: False).is_empty
