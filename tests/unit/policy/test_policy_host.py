"""One plan for all guests: shared pages avoid what others load; all else is as policy "nodes" has it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.model.known_pages import with_nodes
from tests.unit.policy.test_policy_home import HVA, NPAGES, guest_view, host
from tests.unit.policy.test_policy_nodes import bits, moved, view
from vmplace.policy import policy_nodes
from vmplace.policy.plan import GuestSettings, GuestView, Mode, PlacementPlan, Snapshot
from vmplace.policy.policy_host import plan
from vmplace.topology.host import HostTopology

GB = 10**9
HOST = host(bandwidths={(nid, nid): 12 * GB for nid in range(4)})
EVERYTHING = range(NPAGES)
ALL_WRITE = bits(dict.fromkeys(range(4), EVERYTHING), written=EVERYTHING)


def named(guest: GuestView, name: str, cpus: tuple[int, ...] = (0, 2, 4, 6)) -> GuestView:
    vcpus = tuple(replace(vcpu, cpus=(cpu,)) for vcpu, cpu in zip(guest.topology.vcpus, cpus, strict=True))
    assert guest.pages
    topology = replace(guest.topology, name=name, vcpus=vcpus)
    return replace(guest, topology=topology, pages=replace(guest.pages, guest=name))


def spanning(name: str = "span", **more: object) -> GuestView:
    return replace(named(view(*[ALL_WRITE] * 3), name), **more)  # type: ignore[arg-type]


def streaming(node: int = 0, **more: object) -> GuestView:
    """Return a guest with all vCPUs and memory on one node."""
    window = bits({node: EVERYTHING}, written=EVERYTHING)
    guest = at(named(view(*[window] * 3), "stream", (2 * node,) * 4), node)
    return replace(guest, **more)  # type: ignore[arg-type]


def at(guest: GuestView, nodes: np.ndarray | int) -> GuestView:
    assert guest.pages
    places = np.zeros(NPAGES, np.int8) + np.asarray(nodes, np.int8)
    ranges = tuple(with_nodes(one, places) for one in guest.pages.ranges)
    return replace(guest, pages=replace(guest.pages, ranges=ranges))


def planned(*guests: GuestView, on: HostTopology = HOST, **more: object) -> PlacementPlan:
    return plan(Snapshot(on, guests, **{"replica_ratio": 0.25, **more}))  # type: ignore[arg-type]


def carried_out(result: PlacementPlan, guest: GuestView) -> GuestView:
    """Return the guest with its moves done (small pages)."""
    assert guest.pages
    places = guest.pages.ranges[0].part(0, NPAGES)[1].copy()
    for move in result.moves:
        if move.guest == guest.topology.name:
            places[(move.hva - np.uint64(HVA)) // np.uint64(4096)] = move.to_nid
    return at(guest, places)


def spread(result: PlacementPlan, guest: GuestView) -> list[float]:
    """Return the share of the guest's pages on each node once all is done."""
    after = carried_out(result, guest)
    assert after.pages
    return [count / NPAGES for count in after.pages.pages_by_node().values()]


def test_shared_pages_avoid_the_node_that_another_guest_loads_and_it_is_told_why() -> None:
    span = spanning(dram_per_us=10.0)
    result = planned(span, streaming(dram_per_us=30.0))
    assert spread(result, span) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.03)
    (move,) = result.moves
    assert "node 0 has less, as stream loads its memory" in move.reason


def test_policy_nodes_does_not_see_the_other_guest() -> None:
    span = spanning(dram_per_us=10.0)
    result = policy_nodes.plan(Snapshot(HOST, (span, streaming(dram_per_us=30.0)), None, 0.25))
    assert spread(result, span) == pytest.approx([0.25] * 4, abs=0.01)


def test_counted_accesses_tell_more_than_touched_pages() -> None:
    """Both touch all their pages in each window, the other guest a tenth as often."""
    span = spanning(dram_per_us=10.0)
    seldom = planned(span, streaming(dram_per_us=1.0))
    by_pages = planned(spanning(), streaming())
    assert spread(seldom, span)[0] > spread(by_pages, span)[0] + 0.05


def test_one_guest_without_counted_accesses_makes_pages_count_for_all() -> None:
    span = spanning(dram_per_us=10.0)
    some = spread(planned(span, streaming()), span)
    assert some == spread(planned(spanning(), streaming()), spanning())


def test_guests_that_are_alike_are_spread_alike() -> None:
    one, two = spanning("a"), spanning("b")
    result = planned(one, two)
    for guest in (one, two):
        assert spread(result, guest) == pytest.approx([0.25] * 4, abs=0.02)


def test_planning_again_moves_nothing() -> None:
    guests = (spanning("a", dram_per_us=8.0), spanning("b", dram_per_us=4.0), streaming(2, dram_per_us=9.0))
    result = planned(*guests)
    assert result.moves
    assert not planned(*[carried_out(result, guest) for guest in guests]).moves


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.95, 1.05), min_size=3, max_size=3))
def test_rates_that_waver_move_nothing(factors: list[float]) -> None:
    rates = (10.0, 5.0, 12.0)

    def guests(by: list[float]) -> tuple[GuestView, ...]:
        a, b, c = (rate * factor for rate, factor in zip(rates, by, strict=True))
        return spanning("a", dram_per_us=a), spanning("b", dram_per_us=b), streaming(1, dram_per_us=c)

    settled = [carried_out(planned(*guests([1.0] * 3)), guest) for guest in guests(factors)]
    assert not planned(*settled).moves


def test_the_same_snapshot_gives_the_same_plan() -> None:
    first, second = (planned(spanning(), streaming(1)) for _ in range(2))
    (one,), (other,) = first.moves, second.moves
    assert one.hva.tolist() == other.hva.tolist() and one.to_nid.tolist() == other.to_nid.tolist()


def test_private_pages_go_to_their_node_however_crowded_it_is() -> None:
    window = bits({0: range(100), 2: range(200, 300)})
    private = named(view(window, window), "private")
    assert moved(planned(private, streaming(2))) == {2: set(range(200, 300))}


def test_copies_and_their_end_are_those_of_policy_nodes() -> None:
    read = {index: range(512) for index in range(4)}
    guest = view(*[bits(read, written=range(40))] * 3)
    ours, theirs = planned(guest), policy_nodes.plan(Snapshot(HOST, (guest,), None, 0.25))
    for mine, other in zip(ours.replications, theirs.replications, strict=True):
        assert mine.hva.tolist() == other.hva.tolist() and mine.nids == other.nids
    for gone, other_gone in zip(ours.collapses, theirs.collapses, strict=True):
        assert gone.hva.tolist() == other_gone.hva.tolist()
    assert ours.replications and ours.collapses


def test_without_a_known_bandwidth_each_guest_is_looked_at_by_itself() -> None:
    span = spanning(dram_per_us=10.0)
    result = planned(span, streaming(dram_per_us=30.0), on=host())
    assert spread(result, span) == pytest.approx([0.25] * 4, abs=0.01)


def test_a_guest_placed_by_hand_is_left_alone() -> None:
    result = planned(spanning(settings=GuestSettings(Mode.MANUAL)), streaming())
    assert not result.moves and "by hand" in result.stays[0].reason


def test_the_budget_limits_what_moves() -> None:
    assert planned(spanning(), budget_bytes=300 * 4096).size_bytes <= 300 * 4096


def test_nodes_that_the_operator_excludes_hold_nothing() -> None:
    guest = spanning(settings=GuestSettings(allowed_nids=(1, 3)))
    assert spread(planned(guest, streaming(1)), guest)[0::2] == [0, 0]


def test_a_proximity_below_one_puts_its_share_on_other_nodes() -> None:
    window = bits({0: EVERYTHING, 1: EVERYTHING}, written=EVERYTHING)
    tuned = GuestSettings(proximity=0.6)
    guest = replace(named(view(*[window] * 3), "near", (0, 1, 2, 3)), settings=tuned, proximity=0.6)
    outside = sum(spread(planned(guest, streaming(0)), guest)[2:])
    assert outside == pytest.approx(0.2, abs=0.01)


def test_no_more_moves_to_a_node_than_it_has_room_for() -> None:
    full = replace(
        HOST,
        nodes=tuple(
            replace(n, free_bytes=n.memory_bytes * 3 // 100 + 4096 * 50) if n.nid == 2 else n
            for n in HOST.nodes
        ),
    )
    found = {nid: len(pages) for nid, pages in moved(planned(spanning(), on=full)).items()}
    assert found[2] <= 51 and found[1] == pytest.approx(found[3], abs=NPAGES // 50)
    assert found[1] > NPAGES / 4


def test_a_guest_without_windows_yet_is_no_obstacle() -> None:
    new = replace(named(guest_view([0, 2, 4, 6], 0), "new"), pages=None)
    assert planned(spanning(), new).moves
