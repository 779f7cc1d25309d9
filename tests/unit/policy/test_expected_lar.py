"""What a plan promises is what comes of it: the estimate before, against the estimate after."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.views import NPAGES, guest_view, host, ram
from vmplace.model.metrics import local_access_ratio
from vmplace.model.pages import GuestPages
from vmplace.model.traffic import estimated_traffic
from vmplace.policy import home
from vmplace.policy.expected_lar import expected_lar
from vmplace.policy.plan import GuestView, PlacementPlan, Replication, Snapshot, VcpuMove


def lar(view: GuestView) -> float | None:
    assert view.pages
    return local_access_ratio(estimated_traffic(host(), view.topology, view.pages))


def expected(view: GuestView, plan: PlacementPlan) -> float | None:
    assert view.pages
    return expected_lar(host(), view.topology, view.pages, plan)


def test_without_moves_it_is_the_present_one():
    view = guest_view([0, 2], np.arange(NPAGES) % 4, heat=np.arange(NPAGES) % 2 * 200)
    assert expected(view, PlacementPlan()) == pytest.approx(lar(view))


@pytest.mark.parametrize("cpus", [[0], [0, 1]])
@pytest.mark.parametrize("budget_bytes", [None, 4 << 20])
def test_it_is_what_is_estimated_once_the_plan_is_done(cpus: list[int], budget_bytes: int | None):
    heat, nodes = np.where(np.arange(NPAGES) % 3, 200, 0), np.full(NPAGES, 3)
    view = guest_view(cpus, nodes, heat=heat)
    plan = home.plan(Snapshot(host(), (view,), budget_bytes))
    for move in plan.moves:
        nodes[(move.hva.astype(np.int64) - ram().hva) // 4096] = move.to_nid
    after = guest_view(cpus, nodes, heat=heat)
    assert lar(view) == 0.0
    assert expected(view, plan) == pytest.approx(lar(after), abs=0.001)


def test_vcpus_that_follow_their_memory_count():
    view = guest_view([0], 2)
    move = VcpuMove("db1", {0: (4, 5)}, (0,), 2, "its memory is there")
    assert (expected(view, PlacementPlan()), expected(view, PlacementPlan(vcpu_moves=(move,)))) == (0.0, 1.0)


def copies(npages: int, nids: tuple[int, ...], **from_pages: float) -> PlacementPlan:
    """Return a plan of copies of the first pages."""
    runs = np.array([ram().hva], np.uint64), np.array([npages], np.int32)
    lie = {int(name[1:]): count for name, count in from_pages.items()}
    return PlacementPlan(replications=(Replication("db1", *runs, nids, "read", from_pages=lie),))


def test_pages_with_copies_are_local_to_all_nodes_that_have_one():
    view = guest_view([0, 2, 4, 6], 0)
    assert expected(view, PlacementPlan()) == 0.25
    assert expected(view, copies(NPAGES, (0, 1, 2, 3), n0=NPAGES)) == 1.0
    # Of half of them: these from everywhere, the others from one node of four.
    assert expected(view, copies(NPAGES // 2, (0, 1, 2, 3), n0=NPAGES / 2)) == 0.5 + 0.5 * 0.25
    # Two nodes of four have copies.
    assert expected(view, copies(NPAGES, (0, 1), n0=NPAGES)) == 0.5
    # The guest's policy left half of them out; and there are no more hot pages than there are.
    assert expected(view, copies(NPAGES // 2, (0, 1, 2, 3), n0=NPAGES)) == 0.5 + 0.5 * 0.25
    assert expected(view, copies(2 * NPAGES, (0, 1, 2, 3), n0=2 * NPAGES)) == 1.0


def test_without_a_hot_page_nothing_is_expected():
    view = guest_view([0], 1, heat=0)
    assert expected(view, PlacementPlan()) is None
    assert expected(replace(view, pages=GuestPages("db1", (0, 1, 2, 3), 1, ())), PlacementPlan()) is None
