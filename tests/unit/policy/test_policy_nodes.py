"""Pages go to who alone touches them; what all only read is replicated; the rest is spread."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import with_history, with_nodes
from tests.unit.policy.test_policy_home import HVA, NPAGES, guest_view, host
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.policy.policy_nodes import plan
from vmplace.sampling.page_arrays import Indexes
from vmplace.sampling.sample import NodeBits

NOTHING = range(0)


def bits(touched: dict[int, range] | dict[int, Indexes], written: range | Indexes = NOTHING) -> NodeBits:
    """Return which pages node indexes touched; node 0 did the writing."""
    rows = np.zeros((5, NPAGES), np.uint8)
    for index, pages in touched.items():
        rows[index, pages] = 1
    writes = np.zeros((5, NPAGES), np.uint8)
    writes[0, written] = 1
    accessed, written_too = (
        np.packbits(one, axis=1, bitorder="little").view(np.uint64) for one in (rows, writes)
    )
    return NodeBits(accessed, written_too)


def view(*windows: NodeBits, huge: int = 0, sampled: bool = False) -> GuestView:
    seen = guest_view([0, 2, 4, 6], 0, huge=huge)
    assert seen.pages
    ranges = tuple(replace(with_history(pages, *windows), sampled=sampled) for pages in seen.pages.ranges)
    return replace(seen, pages=replace(seen.pages, ranges=ranges))


def planned(
    guest: GuestView, replica_ratio: float = 0.25, budget_bytes: int | None = None, huge_replicas: bool = True
) -> PlacementPlan:
    return plan(Snapshot(host(), (guest,), budget_bytes, replica_ratio, huge_replicas))


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


def test_unseen_pages_go_where_nearly_all_sampled_ones_of_the_range_belong() -> None:
    # Too few in each 2 MiB block to speak for it.
    seen = range(0, NPAGES, 100)
    window = bits({2: seen})
    assert moved(planned(view(window, window))) == {2: set(seen)}
    assert moved(planned(view(window, window, sampled=True))) == {2: set(range(NPAGES))}


def test_where_samples_do_not_tell_all_is_spread_over_the_nodes_of_the_vcpus() -> None:
    few, mine, theirs = range(0, NPAGES, 600), range(0, NPAGES, 100), range(50, NPAGES, 100)
    window, mixed = bits({2: few}), bits({2: mine, 1: theirs})
    for one in (window, mixed):
        found = moved(planned(view(one, one, sampled=True)))
        assert {nid: len(pages) for nid, pages in found.items()} == dict.fromkeys((1, 2, 3), NPAGES // 4)


def test_a_block_with_samples_of_one_node_goes_there_though_the_range_is_shared() -> None:
    window = bits({2: range(0, 500, 100), 1: range(600, NPAGES, 100)})
    found = moved(planned(view(window, window, sampled=True)))
    assert set(range(512)) <= found[2] and 600 in found[1]


def test_a_page_that_was_often_sampled_for_one_node_is_known_among_shared_ones() -> None:
    window = bits({3: range(7, 8), 2: range(0, 500, 50), 1: range(25, 500, 50)})
    assert 7 in moved(planned(view(window, window, window, sampled=True)))[3]


def test_pages_that_were_sampled_are_not_replicated() -> None:
    window = bits({index: range(10, 74) for index in range(4)})
    assert planned(view(window, window)).replications
    assert not planned(view(window, window, sampled=True)).replications


def test_a_sample_of_a_huge_page_counts_once() -> None:
    small, huge = (
        moved(planned(view(*[bits({2: range(512)})] * 2, huge=huge, sampled=True))) for huge in (0, 1)
    )
    assert small == {2: set(range(NPAGES))} and set(huge) == {1, 2, 3}


def test_a_step_of_the_proximity_moves_shared_pages_though_it_makes_little_difference() -> None:
    # Two of four nodes share all pages, and hold half of them each; 0.9 asks for 1/40 on each of the others.
    everything = {0: range(NPAGES), 1: range(NPAGES)}
    window = bits(everything, written=range(NPAGES))
    seen = view(window, window)
    assert seen.pages
    vcpus = seen.topology.vcpus[:2]
    even = np.arange(NPAGES, dtype=np.int8) % 2
    ranges = tuple(with_nodes(one, even) for one in seen.pages.ranges)
    guest = replace(
        seen, topology=replace(seen.topology, vcpus=vcpus), pages=replace(seen.pages, ranges=ranges)
    )
    assert not planned(guest).moves
    tuned = replace(guest, settings=replace(guest.settings, proximity=None), proximity=0.9)
    found = {nid: len(pages) for nid, pages in moved(planned(tuned)).items()}
    assert found == {2: pytest.approx(NPAGES / 40, abs=2), 3: pytest.approx(NPAGES / 40, abs=2)}


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


def test_a_page_written_in_any_of_the_windows_gets_no_copies() -> None:
    read = {index: range(64) for index in range(4)}
    (one,) = planned(view(bits(read), bits(read, written=range(2)), bits(read))).replications
    assert ((one.hva - HVA) // 4096).tolist() == [2] and one.pages == 62


def test_pages_among_some_that_are_always_written_get_copies() -> None:
    read = {index: range(64) for index in range(4)}
    window = bits(read, written=range(32))
    (one,) = planned(view(window, window)).replications
    assert ((one.hva - HVA) // 4096).tolist() == [32] and one.pages == 32


@pytest.mark.parametrize("share", [0.05, 0.25])
def test_pages_that_chance_has_spared_from_writes_get_no_copies(share: float) -> None:
    chance = np.random.default_rng(1)
    read = {index: range(512) for index in range(4)}
    windows = [bits(read, chance.choice(512, int(512 * share), replace=False)) for _ in range(4)]
    result = planned(view(*windows))
    (one,) = result.collapses
    assert not result.replications and one.hva.tolist() == [HVA] and one.npages.tolist() == [512]


@pytest.mark.parametrize("written_windows", [1, 2, 3])
def test_a_table_that_begins_to_be_written_gets_no_copies_for_what_was_only_read_before(
    written_windows: int,
) -> None:
    # Three in four of the touched pages are written: each page was seen once or twice.
    assert not planned(read_before(3 / 4, written_windows)).replications


def test_first_writes_to_a_few_pages_take_no_copies_from_those_around_them() -> None:
    (one,) = planned(read_before(1 / 12, written_windows=1)).replications
    assert one.pages > 0.9 * NPAGES


def read_before(share: float, written_windows: int) -> GuestView:
    """Return a table of which all nodes read a sixth a window, and write a share of it in the last ones."""
    chance, windows, count = np.random.default_rng(1), [], NPAGES // 6
    for age in range(8):
        touched = chance.choice(NPAGES, count, replace=False)
        parts = {index: touched[index::4] for index in range(4)}
        written = touched[: int(count * share)] if age < written_windows else NOTHING
        windows.append(bits(parts, written))
    return view(*windows)


def test_pages_that_may_be_copied_a_window_later_are_not_moved_before() -> None:
    window = bits({index: range(64) for index in range(4)}, written=range(32))
    held, spread = (moved(planned(view(window, window), replica_ratio=ratio)) for ratio in (0.25, 0.0))
    assert {page for pages in held.values() for page in pages} <= set(range(32))
    assert not {page for pages in spread.values() for page in pages} <= set(range(32))


def test_without_replication_shared_pages_are_spread() -> None:
    window = bits({index: range(64) for index in range(4)})
    result = planned(view(window, window), replica_ratio=0.0)
    assert not result.replications and set(moved(result)) == {1, 2, 3}


def test_replicas_keep_within_the_windows_budget() -> None:
    window = bits({index: range(1024) for index in range(4)})
    (one,) = planned(view(window, window), budget_bytes=300 * 4096).replications
    assert one.pages == 100


def copied(result: PlacementPlan) -> list[tuple[int, int]]:
    """Return the first page and the length of each run that is replicated."""
    return [
        ((hva - HVA) // 4096, npages)
        for one in result.replications
        for hva, npages in zip(one.hva.tolist(), one.npages.tolist(), strict=True)
    ]


def test_huge_pages_are_replicated_as_a_whole_whichever_part_was_read() -> None:
    window = bits({index: range(512 * index, 512 * index + 9) for index in (0, 1)} | {2: range(600)})
    assert copied(planned(view(window, window, huge=1))) == [(0, 1024)]


def test_a_huge_page_with_one_written_page_is_not_copied() -> None:
    window = bits({index: range(1024) for index in range(4)}, written=range(700, 701))
    assert copied(planned(view(window, window, huge=1))) == [(0, 512)]


def test_a_budget_holds_for_whole_huge_pages() -> None:
    window = bits({index: range(1024) for index in range(4)})
    budgets = [pages * 3 * 4096 for pages in (511, 512, 1023)]
    result = [copied(planned(view(window, window, huge=1), budget_bytes=budget)) for budget in budgets]
    assert result == [[], [(0, 512)], [(0, 512)]]


def test_a_kernel_that_replicates_small_pages_only_is_not_asked_for_huge_ones() -> None:
    window = bits({index: range(512) for index in range(4)})
    assert not planned(view(window, window, huge=1), huge_replicas=False).replications


def test_untouched_pages_stay() -> None:
    assert planned(view(bits({}), bits({}))) == PlacementPlan()


def randomly_read(chance: np.random.Generator, nodes: tuple[int, ...]) -> NodeBits:
    """Return a window in which each node read 4 % of the pages."""
    rows = np.zeros((5, NPAGES), np.uint8)
    for index in nodes:
        rows[index, chance.integers(NPAGES, size=NPAGES // 25)] = 1
    packed = np.packbits(rows, axis=1, bitorder="little").view(np.uint64)
    return NodeBits(packed, np.zeros_like(packed))


def test_pages_of_a_table_read_at_random_are_shared_whoever_was_seen() -> None:
    """Half of the pages were seen at all, seven in ten of them in one window alone."""
    chance = np.random.default_rng(1)
    windows = [randomly_read(chance, (0, 1, 2, 3)) for _ in range(4)]
    (one,) = planned(view(*windows)).replications
    assert one.pages > 0.99 * NPAGES


def test_pages_around_those_of_one_node_go_there_too() -> None:
    chance = np.random.default_rng(2)
    windows = [randomly_read(chance, (2,)) for _ in range(4)]
    assert moved(planned(view(*windows))) == {2: set(range(NPAGES))}


@pytest.mark.parametrize(("on_node_0", "moves"), [(0.32, False), (0.40, True)])
def test_shared_pages_that_are_spread_well_enough_stay(on_node_0: float, moves: bool) -> None:
    window = bits({index: range(400) for index in range(4)}, range(400))
    seen = view(window, window)
    assert seen.pages
    (pages,) = seen.pages.ranges
    places = np.arange(NPAGES) % 4
    places[: int(512 * (on_node_0 - 0.25) * 4 / 3)] = 0
    ranges = (with_nodes(pages, places),)
    assert bool(planned(replace(seen, pages=replace(seen.pages, ranges=ranges))).moves) is moves


def test_a_few_pages_do_not_speak_for_their_block() -> None:
    window = bits({2: range(100, 107)})
    assert moved(planned(view(window, window))) == {2: set(range(100, 107))}


def test_a_guest_that_runs_on_one_node_is_brought_there_without_evidence() -> None:
    seen = view(bits({}), bits({}))
    vcpus = tuple(replace(vcpu, cpus=(4,)) for vcpu in seen.topology.vcpus)
    result = planned(replace(seen, topology=replace(seen.topology, vcpus=vcpus)))
    assert moved(result) == {2: set(range(NPAGES))}
