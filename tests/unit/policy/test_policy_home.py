"""Memory goes where the vCPUs are: all of it, cell by cell, or interleaved by bandwidth."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import known_pages
from vmplace.model.pages import GuestPages
from vmplace.policy.plan import GuestSettings, GuestView, Mode, Move, PlacementPlan, Snapshot
from vmplace.policy.policy_home import fair_shares, plan
from vmplace.topology.guest import HUGE_BYTES, GuestTopology, Movability, RamRange, Vcpu
from vmplace.topology.host import HostTopology, Node

GIB = 1 << 30
NPAGES = 4096
HVA = 0x7F00_0000_0000


def host(
    nids: tuple[int, ...] = (0, 1, 2, 3), cpuless: tuple[int, ...] = (), **extra: object
) -> HostTopology:
    nodes = tuple(Node(n, () if n in cpuless else (2 * n, 2 * n + 1), 4 * GIB, 3 * GIB) for n in nids)
    distances = {(a, b): 10 if a == b else 20 for a in nids for b in nids}
    return replace(HostTopology(nodes, distances), **extra)  # type: ignore[arg-type]


def ram(cell: int | None = None, hva: int = HVA, movability: Movability = Movability.MOVABLE) -> RamRange:
    return RamRange(hva, NPAGES, None, 4096, movability, "reason of the range", cell)


def guest_view(
    cpus: list[int], nodes: np.ndarray | int, *, ranges: list[RamRange] | None = None,
    heat: np.ndarray | int = 200, huge: int = 0, settings: GuestSettings | None = None,
) -> GuestView:  # fmt: skip
    ranges = ranges or [ram()]
    cells = len(ranges) > 1
    vcpus = tuple(Vcpu(i, 100 + i, (cpu,), i % len(ranges) if cells else None) for i, cpu in enumerate(cpus))
    pages = tuple(
        known_pages(
            one,
            np.full(NPAGES, 0, np.uint8) + np.asarray(heat, np.uint8),
            np.full(NPAGES, 0, np.int8) + np.asarray(nodes, np.int8),
            np.full(NPAGES // 512 + 1, huge, np.uint8),
        )
        for one in ranges
    )
    topology = GuestTopology("db1", 42, 7, "kvm", vcpus, tuple(ranges))
    return GuestView(topology, GuestPages("db1", (0, 1, 2, 3), 1, pages), settings or GuestSettings())


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


def test_a_spanning_guest_is_interleaved_evenly_and_in_fine_grain():
    move = only(planned(guest_view([0, 2, 4, 6], 0)))
    assert np.bincount(move.to_nid, minlength=4)[1:] == pytest.approx([1024] * 3, abs=8)
    placed = np.zeros(NPAGES, int)
    placed[(move.hva.astype(np.int64) - HVA) // 4096] = move.to_nid
    for part in placed.reshape(16, -1):
        assert np.bincount(part, minlength=4) == pytest.approx([64] * 4, abs=8)


def test_a_proximity_below_one_gives_other_nodes_their_share_too():
    view = replace(guest_view([0, 2], np.arange(NPAGES) % 2), proximity=0.6)
    result = planned(view)
    counts = np.bincount([t for m in result.moves for t in m.to_nid], minlength=4)
    # Distances 10 and 20: the canonical weights are 1/4 each, so 0.4 x 1/4 = 1/10 of the pages each go out.
    assert counts.tolist() == pytest.approx([0, 0, NPAGES / 10, NPAGES / 10], abs=4)
    assert "proximity 0.6" in only(result).reason


def test_hot_and_cold_pages_are_interleaved_each_on_their_own():
    heat = np.where(np.arange(NPAGES) < 1024, 255, 0).astype(np.uint8)
    move = only(planned(guest_view([0, 2, 4, 6], 0, heat=heat)))
    hot = (move.hva.astype(np.int64) - HVA) // 4096 < 1024
    assert np.bincount(move.to_nid[hot], minlength=4)[1:] == pytest.approx([256] * 3, abs=4)


def test_an_interleaved_guest_is_left_alone():
    assert planned(guest_view([0, 2, 4, 6], np.arange(NPAGES) % 4)).moves == ()


def test_weights_follow_the_bandwidth_where_it_is_known():
    bandwidths = {(k, n): (30 if n == 0 else 10) * 10**9 for k in range(2) for n in range(2)}
    move = only(planned(guest_view([0, 2], 0), on=host((0, 1), bandwidths=bandwidths)))
    assert len(move.hva) == pytest.approx(NPAGES / 4, abs=4)


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
