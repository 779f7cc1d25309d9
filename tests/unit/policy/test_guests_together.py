"""Guests that crowd a node, are held, or are somewhere odd: what one remembers is not the others' loss."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import with_history
from tests.unit.policy.views import HVA, NPAGES, bits, guest_view, host
from vmplace.model.memory_system import Demand, solved
from vmplace.policy.plan import GuestSettings, GuestView, PlacementPlan, Snapshot
from vmplace.policy.planner_view import BOUND, memory_of
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.sampling.page_arrays import NodeIndexes

S = 1e9
GIB_PER_S = 1 << 30
NARROW = host(
    bandwidths={(a, b): (8 if a == b else 4) * GIB_PER_S for a in range(4) for b in range(4)},
)
WINDOW = bits({0: range(NPAGES)}, range(NPAGES))
VCPUS = 2


def crowd(places: list[NodeIndexes], known_s: float, cpus: Sequence[int] = (0, 1)) -> Iterator[GuestView]:
    """Yield guests that use memory from node 0, with it at these places, as fast as that lets them."""
    for number, (nodes, rate) in enumerate(zip(places, rates(places).tolist(), strict=True)):
        seen = guest_view([*cpus], nodes)
        assert seen.pages
        name = f"g{number}"
        ranges = tuple(with_history(pages, *[WINDOW] * 4) for pages in seen.pages.ranges)
        yield replace(
            seen,
            topology=replace(seen.topology, name=name, pid=100 + number),
            pages=replace(seen.pages, guest=name, ranges=ranges, windows=4),
            dram_per_us=rate * 1000,
            cpus=float(VCPUS),
            known_s=known_s,
        )


def carried_out(plan: PlacementPlan, places: list[NodeIndexes]) -> int:
    """Move the pages; return how many."""
    for move in plan.moves:
        first = (move.hva.astype(np.int64) - HVA) // 4096
        for page, npages, nid in zip(first, move.npages, move.to_nid, strict=True):
            places[int(move.guest[1:])][page : page + npages] = nid
    return sum(int(move.npages.sum()) for move in plan.moves)


def rates(places: list[NodeIndexes], beside: int = 0) -> np.ndarray:
    """Return how fast each guest is by the model, from where their accesses go.

    ``beside``: so many guests more, with their memory and their vCPUs on node 1.
    """
    shares = np.zeros((len(places) + beside, 4, 4))
    for number, nodes in enumerate(places):
        shares[number, 0] = np.bincount(nodes, minlength=4) / NPAGES
    shares[len(places) :, 1, 1] = 1.0
    each = np.ones(len(shares))
    return solved(memory_of(NARROW), Demand(shares, VCPUS * each, 50.0 * each, 2.5 * each)).rates


@pytest.mark.parametrize(("guests", "faster"), [(6, 1.03), (12, 1.5)])
def test_guests_that_left_a_full_controller_do_not_all_go_back(guests: int, faster: float) -> None:
    """Each alone would be faster if it went back, and the others stayed away."""
    places = [np.zeros(NPAGES, np.int8) for _ in range(guests)]
    at_home, policy, moves = rates(places), AutoPolicy(), []
    for now in range(1, 41):
        views = tuple(crowd(places, float(now)))
        moves.append(carried_out(policy(Snapshot(NARROW, views, 256 << 20, now_ns=now * S)), places))
    assert (rates(places) > faster * at_home).all()
    assert sum(moves[25:]) == 0
    # Nothing moved to and fro: what moved is away.
    assert sum(moves) <= 1.5 * sum(int((one != 0).sum()) for one in places)


@pytest.mark.parametrize("seed", [1, 2])
def test_guests_that_left_a_full_controller_stay_away_though_counts_vary(seed: int) -> None:
    """Each window counts a tenth more or less of each guest's accesses: nothing changes by that."""
    places, policy, chance = (
        [np.zeros(NPAGES, np.int8) for _ in range(6)],
        AutoPolicy(),
        np.random.default_rng(seed),
    )
    at_home, moved = rates(places), []
    for now in range(1, 81):
        counts = rates(places) * 1000 * chance.normal(1.0, 0.1, len(places))
        views = [
            replace(one, dram_per_us=count)
            for one, count in zip(crowd(places, float(now)), counts.tolist(), strict=True)
        ]
        moved.append(carried_out(policy(Snapshot(NARROW, tuple(views), 256 << 20, now_ns=now * S)), places))
    away = sum(int((one != 0).sum()) for one in places)
    assert (rates(places) > at_home).all()
    assert sum(moved) <= 6 * away and sum(moved[40:]) <= 2 * away


def of_node_1(known_s: float, rate: float) -> GuestView:
    """Return a protected guest with its vCPUs and its memory on node 1, for ever."""
    window, seen = bits({1: range(NPAGES)}, range(NPAGES)), guest_view([2, 3], 1)
    assert seen.pages
    ranges = tuple(with_history(pages, *[window] * 4) for pages in seen.pages.ranges)
    return replace(
        seen,
        topology=replace(seen.topology, name="p"),
        pages=replace(seen.pages, guest="p", ranges=ranges, windows=4),
        settings=GuestSettings(protected=True, allowed_nids=(1,)),
        dram_per_us=rate * 1000,
        cpus=float(VCPUS),
        known_s=known_s,
    )


@pytest.mark.parametrize("guests", [8, 20])
def test_guests_that_leave_a_full_controller_cost_a_protected_one_no_more_than_its_bound(guests: int) -> None:
    """Neither in one plan nor in many, each of which costs it a little."""
    places, policy = [np.zeros(NPAGES, np.int8) for _ in range(guests)], AutoPolicy()
    at_first, slower = rates(places, beside=1)[-1], []
    for now in range(3601, 3613):
        *each, own = rates(places, beside=1)
        near = GuestSettings(allowed_nids=(0, 1))
        views = [
            replace(one, dram_per_us=rate * 1000, settings=near)
            for one, rate in zip(crowd(places, float(now)), each, strict=True)
        ]
        views.append(of_node_1(float(now), own))
        carried_out(policy(Snapshot(NARROW, tuple(views), None, now_ns=now * S)), places)
        slower.append(at_first / rates(places, beside=1)[-1] - 1)
    assert 0.003 < max(slower) <= BOUND


def test_what_a_guest_may_ask_of_memory_turns_no_loss_into_a_gain() -> None:
    """Eight guests work in their caches; nothing counts that, so they may be what fills the controller."""
    places = [np.zeros(NPAGES, np.int8) for _ in range(9)]
    few, policy = bits({0: range(200)}, range(200)), AutoPolicy()
    for now in range(1, 81):
        views = [replace(one, dram_per_us=None) for one in crowd(places, float(now), (0, 2))]
        for number, one in enumerate(views[1:], 1):
            assert one.pages
            ranges = tuple(with_history(pages, *[few] * 4) for pages in one.pages.ranges)
            views[number] = replace(one, pages=replace(one.pages, ranges=ranges))
        carried_out(policy(Snapshot(NARROW, tuple(views), 256 << 20, now_ns=now * S)), places)
    assert not places[0].any()
    assert policy.state.memories["g0"].gained_ns <= 0


def busy(name: str = "db1", *, may_change: bool = True) -> GuestView:
    """Return a guest of four nodes that has its pages on the first, and uses each node's from there."""
    window = bits({node: range(node * 1000, node * 1000 + 1000) for node in range(4)}, range(NPAGES))
    seen = guest_view([0, 2, 4, 6], 0)
    assert seen.pages
    ranges = tuple(with_history(pages, *[window] * 4) for pages in seen.pages.ranges)
    return replace(
        seen,
        topology=replace(seen.topology, name=name, pid=42 if name == "db1" else 43),
        pages=replace(seen.pages, guest=name, ranges=ranges, windows=4),
        dram_per_us=200.0,
        cpus=4.0,
        may_change=may_change,
    )


def pages_of(plan: PlacementPlan, name: str = "db1") -> int:
    return sum(len(move.hva) for move in plan.moves if move.guest == name)


def test_what_nobody_moved_was_not_paid_for() -> None:
    """A guest that was held for minutes gets the plan of one that the agent has known as long."""
    held, fresh = AutoPolicy(), AutoPolicy()
    for now in range(1, 301):
        held(Snapshot(host(), (busy(may_change=False),), now_ns=now * S))
    fresh(Snapshot(host(), (replace(busy(), known_s=1.0),), now_ns=S))
    last = Snapshot(host(), (busy(),), now_ns=301 * S)
    assert pages_of(held(last)) == pages_of(fresh(last)) > 0


def test_copies_that_nobody_made_are_neither_had_nor_gained() -> None:
    window = bits({node: range(NPAGES) for node in range(4)})
    seen = busy()
    assert seen.pages
    ranges = tuple(with_history(pages, *[window] * 4) for pages in seen.pages.ranges)
    reader = replace(seen, pages=replace(seen.pages, ranges=ranges))
    policy, held = AutoPolicy(), replace(reader, may_change=False)
    for now in range(1, 61):
        plan = policy(Snapshot(host(), (held,), 256 << 20, 0.5, True, now_ns=now * S))
    assert plan.replications
    assert policy.state.memories["db1"].gained_ns == 0 and not policy.state.known["db1"].copied.any()
    policy(Snapshot(host(), (reader,), 256 << 20, 0.5, True, now_ns=61 * S))
    assert policy.state.memories["db1"].spent_ns > 0 and policy.state.known["db1"].copied.any()


def test_a_guest_that_is_held_takes_no_room_of_the_others() -> None:
    """The budget of a window is what is moved in it."""

    def planned(is_held: bool) -> int:
        policy, plan = AutoPolicy(), PlacementPlan()
        for now in range(1, 13):
            views = (busy("a", may_change=not is_held), busy("db1"))
            plan = policy(Snapshot(host(), views, 1000 * 4096, now_ns=now * S))
        return pages_of(plan)

    assert planned(is_held=True) == 1000 > planned(is_held=False)


def test_pages_on_a_node_that_is_known_to_have_no_memory_stay() -> None:
    """It came up since the host was read."""
    old = host()
    nodes = tuple(replace(one, memory_bytes=0, free_bytes=0) if one.nid == 3 else one for one in old.nodes)
    policy, plan = AutoPolicy(), PlacementPlan()
    guest = busy()
    assert guest.pages
    there = guest_view([0, 2, 4, 6], np.where(np.arange(NPAGES) < 100, 3, 0)).pages
    assert there
    ranges = tuple(
        replace(one, nodes=two.nodes) for one, two in zip(guest.pages.ranges, there.ranges, strict=True)
    )
    guest = replace(guest, pages=replace(guest.pages, ranges=ranges))
    for now in range(1, 13):
        plan = policy(Snapshot(replace(old, nodes=nodes), (guest,), now_ns=now * S))
    moved = {(hva - HVA) // 4096 for move in plan.moves for hva in move.hva.tolist()}
    assert moved and not moved & set(range(100))
    assert 3 not in {nid for move in plan.moves for nid in move.to_nid.tolist()}
