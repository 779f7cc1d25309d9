"""Pages go to who alone touches them; what all only read is replicated; the rest is spread."""

from dataclasses import replace

import numpy as np

from tests.unit.policy.test_policy_home import HVA, NPAGES, guest_view, host
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.policy.policy_nodes import plan
from vmplace.sampling.sample import NodeBits


def bits(touched: dict[int, range], written: range = range(0)) -> NodeBits:
    """Return which pages node indexes touched; node 0 did the writing."""
    rows = np.zeros((5, NPAGES), np.uint8)
    for index, pages in touched.items():
        rows[index, pages] = 1
    writes = np.zeros((5, NPAGES), np.uint8)
    writes[0, written] = 1
    packed = [np.packbits(one, axis=1, bitorder="little").view(np.uint64) for one in (rows, writes)]
    return NodeBits(*packed)


def view(*windows: NodeBits, huge: int = 0) -> GuestView:
    seen = guest_view([0, 2, 4, 6], 0, huge=huge)
    assert seen.pages
    ranges = tuple(replace(pages, history=windows) for pages in seen.pages.ranges)
    return replace(seen, pages=replace(seen.pages, ranges=ranges))


def planned(guest: GuestView, replica_ratio: float = 0.25, budget_bytes: int | None = None) -> PlacementPlan:
    return plan(Snapshot(host(), (guest,), budget_bytes, replica_ratio))


def moved(result: PlacementPlan) -> dict[int, set[int]]:
    """Return the pages that move, by their new node."""
    found: dict[int, set[int]] = {}
    for move in result.moves:
        for hva, nid in zip(move.hva.tolist(), move.to_nid.tolist(), strict=True):
            found.setdefault(nid, set()).add((hva - HVA) // 4096)
    return found


def test_a_page_goes_to_the_node_that_alone_touches_it() -> None:
    window = bits({0: range(100), 2: range(200, 300)})
    assert moved(planned(view(window, window))) == {2: set(range(200, 300))}


def test_one_window_is_not_enough() -> None:
    assert not planned(view(bits({2: range(300)}))).moves


def test_a_page_that_another_node_touched_before_is_shared() -> None:
    windows = bits({1: range(64)}, range(64)), bits({2: range(64)}, range(64))
    result = planned(view(*windows))
    assert not result.replications and set(moved(result)) == {1, 2, 3}


def test_shared_pages_that_nobody_writes_are_replicated_in_runs() -> None:
    window = bits({index: range(10, 74) for index in range(4)}, written=range(40, 42))
    (one,) = planned(view(window, window)).replications
    assert ((one.hva - HVA) // 4096).tolist() == [10, 42] and one.npages.tolist() == [30, 32]
    assert one.nids == (0, 1, 2, 3)


def test_a_write_in_one_window_alone_may_be_kvms_own() -> None:
    read = {index: range(64) for index in range(4)}
    (one,) = planned(view(bits(read), bits(read, written=range(64)), bits(read))).replications
    assert one.pages == 64


def test_without_replication_shared_pages_are_spread() -> None:
    window = bits({index: range(64) for index in range(4)})
    result = planned(view(window, window), replica_ratio=0.0)
    assert not result.replications and set(moved(result)) == {1, 2, 3}


def test_replicas_keep_within_the_windows_budget() -> None:
    window = bits({index: range(1024) for index in range(4)})
    (one,) = planned(view(window, window), budget_bytes=300 * 4096).replications
    assert one.pages == 100


def test_huge_pages_are_not_replicated() -> None:
    window = bits({index: range(512) for index in range(4)})
    assert not planned(view(window, window, huge=1)).replications


def test_untouched_pages_stay() -> None:
    assert planned(view(bits({}), bits({}))) == PlacementPlan()
