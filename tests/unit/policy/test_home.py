"""Memory goes where the vCPUs are, if that is one node: all of it, cell by cell."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.views import GIB, HVA, NPAGES, guest_view, host, ram
from vmplace.policy.home import fair_shares, plan
from vmplace.policy.plan import GuestSettings, GuestView, Mode, Move, PlacementPlan, Snapshot
from vmplace.topology.guest import HUGE_BYTES, Movability
from vmplace.topology.host import HostTopology


def planned(
    *guests: GuestView, on: HostTopology | None = None, budget_bytes: int | None = None
) -> PlacementPlan:
    return plan(Snapshot(on or host(), guests, budget_bytes))


def only(result: PlacementPlan) -> Move:
    (move,) = result.moves
    return move


def test_memory_goes_to_the_one_node_of_the_vcpus():
    move = only(planned(guest_view([4, 5], 1)))
    assert set(move.to_nid) == {2} and set(move.from_nid) == {1} and len(move.hva) == NPAGES
    assert move.hva.tolist() == [HVA + 4096 * i for i in range(NPAGES)]
    assert "run on node 2" in move.reason


def test_a_guest_on_several_nodes_stays_and_gets_the_reason():
    result = planned(guest_view([0, 2, 4, 6], 0))
    assert result.moves == () and "run on several nodes" in result.stays[0].reason


def test_nothing_moves_for_a_guest_at_home():
    assert planned(guest_view([4, 5], 2)).moves == ()


def test_hottest_pages_come_first():
    heat = np.zeros(NPAGES, np.uint8)
    heat[4000:] = 255
    move = only(planned(guest_view([4], 1, heat=heat), budget_bytes=96 * 4096))
    assert sorted(move.hva.tolist()) == [HVA + 4096 * i for i in range(4000, 4096)]


def test_absent_pages_do_not_move():
    nodes = np.full(NPAGES, -1, np.int8)
    nodes[7] = 0
    assert only(planned(guest_view([4], nodes))).hva.tolist() == [HVA + 7 * 4096]


def test_each_cell_goes_to_its_own_vcpus():
    cells = [ram(0), ram(1, HVA + NPAGES * 4096)]
    result = planned(guest_view([2, 6], 0, ranges=cells))
    assert [(set(m.to_nid), "cell" in m.reason) for m in result.moves] == [({1}, True), ({3}, True)]


def test_a_cpu_node_without_memory_uses_the_nearest():
    near_1 = {**host().distances, (2, 1): 15}
    nodes = tuple(replace(n, memory_bytes=0, free_bytes=0) if n.nid == 2 else n for n in host().nodes)
    move = only(planned(guest_view([4, 5], 0), on=replace(host(), nodes=nodes, distances=near_1)))
    assert set(move.to_nid) == {1} and "nearest" in move.reason


def test_allowed_nodes_are_the_limit():
    move = only(planned(guest_view([4, 5], 1, settings=GuestSettings(allowed_nids=(3,)))))
    assert set(move.to_nid) == {3}


def test_sparse_nids_are_nids_not_indexes():
    view = guest_view([4, 5], 0)
    assert view.pages is not None
    view = replace(view, pages=replace(view.pages, nids=(0, 2, 5)))
    move = only(planned(view, on=host((0, 2, 5))))
    assert set(move.to_nid) == {2} and set(move.from_nid) == {0}


@pytest.mark.parametrize(
    "kind", [Movability.SHARED, Movability.HUGETLB, Movability.PINNED, Movability.GUEST_MEMFD]
)
def test_memory_that_cannot_move_stays_with_the_reason(kind):
    result = planned(guest_view([4], 0, ranges=[ram(movability=kind)]))
    assert result.moves == () and "reason of the range" in result.stays[0].reason


def test_a_manual_guest_stays():
    result = planned(guest_view([4], 0, settings=GuestSettings(mode=Mode.MANUAL)))
    assert result.moves == () and "manual" in result.stays[0].reason


def test_a_huge_page_moves_whole():
    move = only(planned(guest_view([4], 0, huge=1)))
    assert set(move.npages) == {512} and len(move.hva) == NPAGES // 512
    assert move.hva.tolist() == [HVA + HUGE_BYTES * i for i in range(NPAGES // 512)]


def test_a_full_node_takes_no_more_than_its_room():
    nodes = tuple(
        replace(n, free_bytes=int(0.03 * 4 * GIB) + 4096 * 100) if n.nid == 2 else n for n in host().nodes
    )
    result = planned(guest_view([4], 0), on=replace(host(), nodes=nodes))
    assert sum(len(m.hva) for m in result.moves) <= 101 and "room" in result.stays[0].reason


def test_two_guests_share_the_room_of_a_node():
    free = int(0.03 * 4 * GIB) + 4096 * 5000
    nodes = tuple(replace(n, free_bytes=free) if n.nid == 2 else n for n in host().nodes)
    result = planned(guest_view([4], 0), guest_view([5], 0), on=replace(host(), nodes=nodes))
    assert sum(len(m.hva) for m in result.moves) == pytest.approx(5000, abs=2)


def test_the_budget_is_shared_and_the_rest_of_the_modest_goes_to_the_others():
    assert fair_shares([1000, 10, 1000], 210 * 4096) == [100, 10, 100]


def test_an_unknown_page_statistic_is_not_a_guess():
    result = planned(replace(guest_view([4], 0), pages=None))
    assert result.moves == () and "nothing is known" in result.stays[0].reason


def test_a_range_that_starts_inside_a_huge_block_keeps_its_heads_aligned():
    shifted = [ram(hva=HVA + 4096 * 3)]
    move = only(planned(guest_view([4], 0, ranges=shifted, huge=1)))
    assert all(int(hva) % HUGE_BYTES == 0 for hva in move.hva)


def guest_called(name: str, *, may_change: bool = True, **settings: object) -> GuestView:
    """Return a guest whose vCPUs run on node 1, and its memory is on node 0."""
    view = guest_view([2, 3], 0, settings=GuestSettings(**settings))  # type: ignore[arg-type]
    return replace(view, topology=replace(view.topology, name=name), may_change=may_change)


def with_room(pages: int) -> HostTopology:
    """Return the host with room for so many pages on node 1, beside what is never filled."""
    free_bytes = 4 * GIB * 3 // 100 + (pages + 1) * 4096
    nodes = tuple(replace(n, free_bytes=free_bytes) if n.nid == 1 else n for n in host().nodes)
    return replace(host(), nodes=nodes)


@pytest.mark.parametrize("stays", [{"may_change": False}, {"moves": False}], ids=["advise", "no moves"])
def test_a_guest_that_does_not_move_takes_neither_room_nor_budget_from_others(stays: dict[str, bool]):
    guests = guest_called("still", **stays), guest_called("goes")
    for more in ({"on": with_room(NPAGES)}, {"budget_bytes": NPAGES * 4096}):
        moved = {move.guest: len(move.hva) for move in planned(*guests, **more).moves}
        assert moved["goes"] == NPAGES


def test_what_guests_that_move_leave_is_planned_for_the_others():
    moved = {move.guest: len(move.hva) for move in planned(guest_called("still", may_change=False)).moves}
    assert moved == {"still": NPAGES}
