"""However many small pages differ, a plan asks for so many one by one, and moves all as they lie."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from bench.bench_decision import random_range
from tests.unit.model.known_pages import with_history, with_nodes
from tests.unit.model.test_touched_pages import HVA, large, packed
from tests.unit.policy.views import guest_view, host
from vmplace.model.evidence import Entries, entries_of
from vmplace.model.pages import GuestPages
from vmplace.policy import policy_auto
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.sampling.sample import NodeBits

BLOCK, NODES, USER = 512, 4, 2


def guest(blocks: int, nodes: np.ndarray | None = None) -> GuestView:
    """Return a guest of which node 2 touches seven in ten pages at random; ``nodes``: where each page is."""
    chance, npages = np.random.default_rng(1), blocks * BLOCK
    windows = []
    for _ in range(4):
        touched = np.zeros((NODES + 1, npages), np.uint8)
        touched[USER] = chance.random(npages) < 0.7
        touched[0] = chance.random(npages) < 0.1
        windows.append(policy_bits(touched))
    pages = with_history(large(blocks), *windows)
    pages = pages if nodes is None else with_nodes(pages, nodes)
    some = guest_view([0, 2, 4, 6], 0)
    topology = replace(some.topology, ram=(pages.ram,))
    known = GuestPages("db1", (0, 1, 2, 3), 4, (pages,))
    return replace(some, topology=topology, pages=known, dram_per_us=200.0, cpus=4.0)


def policy_bits(touched: np.ndarray) -> NodeBits:
    return NodeBits(packed(touched), packed(touched))


def plan_after(some: GuestView, seconds: int = 12) -> PlacementPlan:
    policy, plan = AutoPolicy(), PlacementPlan()
    for now in range(1, seconds + 1):
        plan = policy(Snapshot(host(), (some,), None, 0.25, True, now_ns=now * 1e9))
    return plan


def evidence(some: GuestView, most: int | None) -> Entries:
    assert some.pages
    found = entries_of(some.pages, 1.0, most)
    assert found
    return found


@pytest.mark.parametrize("blocks", [8, 16, 64])
def test_so_many_pages_are_kept_apart(blocks: int) -> None:
    found = evidence(guest(blocks), 8 * BLOCK)
    assert found.apart == 8 * BLOCK
    assert found.coarse == blocks - 8
    assert len(found.heat) == found.apart + found.coarse
    assert found.sizes.sum() == blocks * BLOCK


def test_a_block_as_a_whole_is_about_as_hot_as_its_pages() -> None:
    """One page in eight is looked at: the mean of 64 in 512."""
    apart, whole = (evidence(guest(16), most) for most in (None, 0))
    assert len(whole.heat) == 16
    # Bits that are read once a window are rounded to windows: 0.4 to 1, 2.8 to 3.
    assert whole.heat[:, USER].sum() == pytest.approx(apart.heat[:, USER].sum(), rel=0.15)
    assert (whole.heat.argmax(axis=1) == USER).all()


def test_memory_of_a_plan_does_not_grow_with_pages_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_auto, "MOST_COUNTS", 16 * BLOCK * NODES)
    peaks = []
    for blocks in (16, 128):
        policy, some = AutoPolicy(), guest(blocks)
        for now in (1, 2):
            tracemalloc.start()
            policy(Snapshot(host(), (some,), 1 << 21, 0.25, True, now_ns=now * 1e9))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        peaks.append(peak)
    # Eight times the pages; of each block beyond, 512 bytes are looked at.
    assert peaks[1] < 1.5 * peaks[0]


def test_pages_of_a_whole_block_move_from_where_each_of_them_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_auto, "MOST_COUNTS", 2 * BLOCK * NODES)
    nodes = np.random.default_rng(2).choice([0, 0, 0, 1, 2, -1], 8 * BLOCK)
    plan = plan_after(guest(8, nodes))
    seen: set[int] = set()
    for move in plan.moves:
        page = ((move.hva - np.uint64(HVA)) // np.uint64(4096)).astype(int)
        assert (move.npages == 1).all()
        assert (move.from_nid == nodes[page]).all()
        assert (move.to_nid != nodes[page]).all()
        assert (nodes[page] >= 0).all()
        seen |= set(page[move.to_nid == USER].tolist())
    away = set(np.flatnonzero((nodes == 0) | (nodes == 1)).tolist())
    # Six of eight blocks are placed as a whole.
    assert len(seen) > 0.75 * len(away)
    assert not plan.replications


def test_the_operator_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_after(guest(8), seconds=1).notes == ()
    monkeypatch.setattr(policy_auto, "MOST_COUNTS", 2 * BLOCK * NODES)
    (note,) = plan_after(guest(8), seconds=1).notes
    assert note == policy_auto.COARSE.format("db1", 6)


def named(name: str, some: GuestView, cpus: list[int]) -> GuestView:
    """Return the guest under that name, with vCPUs on the nodes of these CPUs."""
    topology = replace(guest_view(cpus, 0).topology, name=name, ram=some.topology.ram)
    pages = None if some.pages is None else replace(some.pages, guest=name)
    return replace(some, topology=topology, pages=pages)


def test_of_many_guests_those_on_one_node_go_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six guests share in what is enough for twelve blocks.  Nobody gets what others do without."""
    monkeypatch.setattr(policy_auto, "MOST_COUNTS", 12 * BLOCK * NODES)
    away = np.zeros(8 * BLOCK, np.int8)
    one_node = [named(f"one{number}", guest(8, away), [4, 5]) for number in range(4)]
    spanning = [named(f"span{number}", guest(8), [0, 2, 4, 6]) for number in range(2)]
    policy, moved = AutoPolicy(), set[str]()
    for now in range(1, 13):
        plan = policy(Snapshot(host(), (*one_node, *spanning), None, 0.25, True, now_ns=now * 1e9))
        moved |= {move.guest for move in plan.moves if (move.to_nid == USER).all()}
    by_blocks = dict.fromkeys(("one0", "one1", "one2", "one3"), 8) | {"span0": 6, "span1": 6}
    assert plan.notes == tuple(policy_auto.COARSE.format(name, by_blocks[name]) for name in sorted(by_blocks))
    assert moved >= {"one0", "one1", "one2", "one3"}


def test_blocks_that_lie_on_several_nodes_are_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a whole such a block is where most of its pages are, and the others would never come home."""
    monkeypatch.setattr(policy_auto, "MOST_COUNTS", 8 * BLOCK * NODES)
    nodes = np.random.default_rng(2).choice([USER, USER, USER, 1, 3], 2 * BLOCK).astype(np.int8)
    guests = tuple(named(f"one{number}", guest(2, nodes), [4, 5]) for number in range(4))
    policy, home = AutoPolicy(), set[tuple[str, int]]()
    for now in range(1, 13):
        plan = policy(Snapshot(host(), guests, None, 0.25, True, now_ns=now * 1e9))
        for move in plan.moves:
            home |= {(move.guest, int(hva)) for hva in move.hva[move.to_nid == USER]}
    assert len(home) > 0.9 * len(guests) * np.count_nonzero(nodes != USER)


def test_what_guests_on_one_node_would_not_use_is_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are alike need no entry each: the guest that spans nodes has what eight blocks need."""
    monkeypatch.setattr(policy_auto, "MOST_COUNTS", 9 * BLOCK * NODES)
    alike = guest(2)
    touched = np.zeros((NODES + 1, 2 * BLOCK), np.uint8)
    touched[USER] = 1
    pages = with_history(large(2), *[policy_bits(touched)] * 4)
    alike = replace(alike, pages=GuestPages("db1", (0, 1, 2, 3), 4, (pages,)))
    one_node = [named(f"one{number}", alike, [4, 5]) for number in range(8)]
    spanning = named("span", guest(8), [0, 2, 4, 6])
    plan = AutoPolicy()(Snapshot(host(), (*one_node, spanning), None, 0.25, True, now_ns=1e9))
    assert plan.notes == ()


@pytest.mark.parametrize(("elsewhere", "apart"), [((), False), ((700,), True), ((1026,), False)])
def test_a_part_of_a_block_at_the_end_of_a_range_goes_by_pages_anyhow(
    elsewhere: tuple[int, ...], apart: bool
) -> None:
    """Of a range of 1,030 pages the last six are no whole block; nodes are not known beyond it."""
    pages = random_range(1030, 100, (1,))
    nodes = np.ones(1030, np.int8)
    nodes[list(elsewhere)] = 2
    assert policy_auto._lies_apart(with_nodes(pages, nodes)) == apart
