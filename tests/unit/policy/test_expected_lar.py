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
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot, VcpuMove


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


def test_without_a_hot_page_nothing_is_expected():
    view = guest_view([0], 1, heat=0)
    assert expected(view, PlacementPlan()) is None
    assert expected(replace(view, pages=GuestPages("db1", (0, 1, 2, 3), 1, ())), PlacementPlan()) is None
