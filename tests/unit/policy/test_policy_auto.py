"""The joint plan from the agent's evidence: what it moves, leaves alone and remembers."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import with_history
from tests.unit.model.test_touched_pages import large
from tests.unit.policy.views import HVA, NPAGES, bits, guest_view, host, moved, view
from vmplace.model.touched_blocks import touched_pages
from vmplace.model.touched_pages import TouchedPages
from vmplace.policy.plan import GuestSettings, GuestView, Mode, NodeShares, PlacementPlan, Snapshot
from vmplace.policy.plan_state import State, entries_before
from vmplace.policy.policy_auto import AutoPolicy, Horizon, plan_auto, uncounted
from vmplace.sampling.sample import NodeBits, NodeHits
from vmplace.topology.guest import Movability

REAL = Horizon()
S = 1e9


def after(
    guest: GuestView, *, seconds: int = 12, policy: AutoPolicy | None = None, **more: object
) -> PlacementPlan:
    """Return the plan once the same was seen for so long: by then a guest may stake something."""
    policy = policy or AutoPolicy()
    plan = PlacementPlan()
    for now in range(1, seconds + 1):
        snapshot = Snapshot(host(), (guest,), None, 0.25, True, now_ns=now * S)
        plan = policy(replace(snapshot, **more))  # type: ignore[arg-type]
    return plan


def busy(*windows: NodeBits, huge: int = 0, **settings: object) -> GuestView:
    guest = view(*windows, huge=huge)
    return replace(guest, dram_per_us=200.0, cpus=4.0, settings=GuestSettings(**settings))  # type: ignore[arg-type]


def test_a_guest_that_spans_nodes_is_left_alone_where_nobody_sees_nodes() -> None:
    spanning = guest_view([0, 2, 4, 6], 0)
    assert after(spanning).moves == ()


def test_memory_goes_home_if_all_vcpus_run_on_one_node() -> None:
    """That needs no knowledge of pages."""
    assert moved(after(guest_view([2, 3], 0))) == {1: set(range(NPAGES))}


def test_memory_of_a_guest_on_one_node_goes_home_though_nothing_counts_its_accesses() -> None:
    """Bits that see nodes stake little on what was seen; here, every touch comes from the one node."""
    window = bits({0: range(300)}, range(100))
    seen = view(*[window] * 4)
    vcpus = tuple(replace(vcpu, cpus=(4,)) for vcpu in seen.topology.vcpus)
    narrow = replace(seen, topology=replace(seen.topology, vcpus=vcpus))
    assert moved(after(narrow)) == {2: set(range(NPAGES))}
    assert after(seen).moves == ()


def test_memory_of_a_guest_on_one_node_goes_home_though_samples_missed_most_of_its_touches() -> None:
    """Its accesses are counted, few of them, and samples saw hardly a page: by these no move pays."""
    window = bits({2: range(3)})
    seen = replace(view(*[window] * 4), dram_per_us=1e-6)
    vcpus = tuple(replace(vcpu, cpus=(4,)) for vcpu in seen.topology.vcpus)
    narrow = replace(seen, topology=replace(seen.topology, vcpus=vcpus))
    assert after(narrow).moves == ()
    assert narrow.pages is not None
    ranges = tuple(replace(one, sampled=True) for one in narrow.pages.ranges)
    sampled = replace(narrow, pages=replace(narrow.pages, ranges=ranges))
    assert moved(after(sampled)) == {2: set(range(NPAGES))}


def test_what_needs_no_evidence_keeps_to_the_operators_nodes() -> None:
    guest = guest_view([2, 3], 0, settings=GuestSettings(allowed_nids=(0, 3)))
    assert moved(after(guest)) == {}
    assert after(guest_view([2, 3], 0, settings=GuestSettings(mode=Mode.MANUAL))).moves == ()


@pytest.mark.parametrize(("lar", "goes"), [(None, {1}), (0.9, set()), (0.1, {1})])
def test_huge_pages_that_bits_show_alike_go_by_the_counted_lar(lar: float | None, goes: set[int]) -> None:
    """Bits say that node 1 uses huge pages of node 0 a little more; the CPU counts who really does."""
    every = range(4096)
    both, one = bits({0: every, 1: every}, every), bits({1: every}, every)
    guest = replace(busy(both, both, both, one, huge=1), lar=lar)
    assert set(moved(after(guest))) == goes


def test_huge_pages_that_others_clearly_use_go_whatever_the_lar() -> None:
    """Private pages may be so hot that nearly all accesses are local: that says nothing of these."""
    every = range(4096)
    both, one = bits({0: every, 1: every}, every), bits({1: every}, every)
    guest = replace(busy(both, one, one, one, huge=1), lar=0.9)
    assert set(moved(after(guest))) == {1}


def test_small_pages_go_by_their_bits_whatever_the_lar() -> None:
    every = range(4096)
    both, one = bits({0: every, 1: every}, every), bits({1: every}, every)
    assert set(moved(after(replace(busy(both, both, both, one), lar=0.9)))) == {1}


def test_pages_go_to_the_node_that_uses_them() -> None:
    window = bits({2: range(200, 300), 0: range(100)}, range(200, 300))
    assert moved(after(busy(*[window] * 4))) == {2: set(range(200, 300))}


def test_where_nothing_counts_accesses_little_is_staked_and_it_is_said() -> None:
    """A bit that is seen once a second may stand for thousands of accesses, or for one."""
    window = bits({2: range(200, 300), 0: range(100)}, range(200, 300))
    guest = view(*[window] * 4)
    assert after(guest).moves == ()
    (reported,) = uncounted(Snapshot(host(), (guest,)))
    assert guest.topology.name in reported
    assert uncounted(Snapshot(host(), (busy(window),))) == ()


def planned_by_chance(chance: np.random.Generator, likely: np.ndarray, node: np.ndarray) -> set[int]:
    """Return what would move in windows 8 to 20 if node n touches page p at a chance of ``likely[n, p]``."""
    policy, everything = AutoPolicy(), set[int]()
    seen: list[NodeBits] = []
    for now in range(1, 21):
        touched = chance.random(likely.shape) < likely
        seen.append(bits({n: np.flatnonzero(row) for n, row in enumerate(touched)}, range(NPAGES)))
        guest = placed(node, *seen[:-5:-1])
        plan = policy(Snapshot(host(), (guest,), now_ns=now * S))
        if now >= 8:
            everything.update(*moved(plan).values())
    return everything


def placed(node: np.ndarray, *windows: NodeBits) -> GuestView:
    seen = guest_view([0, 2, 4, 6], node)
    assert seen.pages
    ranges = tuple(with_history(pages, *windows) for pages in seen.pages.ranges)
    return replace(seen, pages=replace(seen.pages, ranges=ranges), dram_per_us=4.0, cpus=4.0)


def test_pages_that_all_nodes_use_alike_do_not_follow_chance() -> None:
    """What a whole block has in common still follows it, which moves pages where most touches are missed."""
    node = (np.arange(NPAGES) % 4).astype(np.int8)
    moves = planned_by_chance(np.random.default_rng(1), np.full((4, NPAGES), 0.9), node)
    assert len(moves) < 0.02 * NPAGES


def test_pages_of_one_node_each_are_kept_apart_within_a_block() -> None:
    owner = np.arange(NPAGES) % 4
    likely = np.where(owner == np.arange(4)[:, None], 0.9, 0.0)
    moves = planned_by_chance(np.random.default_rng(1), likely, np.zeros(NPAGES, np.int8))
    assert moves == set(np.flatnonzero(owner != 0).tolist())


def test_guests_of_an_emulated_host_are_placed_as_real_ones_would_be() -> None:
    """They do in 1000 s what real ones do in one, so they seem to be as good as idle."""
    window = bits({2: range(200, 300)}, range(200, 300))
    slow = replace(busy(*[window] * 4), dram_per_us=1e-4, cpus=None)
    assert after(slow).moves == ()
    assert moved(after(slow.sped_up(1000.0))) == {2: set(range(200, 300))}
    assert view(window).sped_up(1000.0).dram_per_us is None


def test_pages_that_all_only_read_get_copies_while_there_may_be_some() -> None:
    window = bits({index: range(100) for index in range(4)})
    (copies,) = after(busy(*[window] * 4)).replications
    assert copies.pages == 100 and copies.nids == (0, 1, 2, 3)
    assert after(busy(*[window] * 4), replica_ratio=0.0).replications == ()


def test_copies_have_a_gain_while_they_are_new() -> None:
    """Three nodes of four have them nearer then; later plans want them still, and gain nothing by that."""
    policy, seen = AutoPolicy(), busy(*[bits({index: range(100) for index in range(4)})] * 4)
    plans = [
        policy(Snapshot(host(), (seen,), None, 0.25, True, now_ns=now * S)).replications
        for now in range(1, 13)
    ]
    (first,), (last,) = next(filter(None, plans)), plans[-1]
    assert first.saved_ns is not None and first.saved_ns > 0.0 == last.saved_ns
    assert first.from_pages == last.from_pages == {0: 100, 1: 0, 2: 0, 3: 0}


def test_nothing_goes_to_a_node_that_the_operator_excludes() -> None:
    window = bits({2: range(200, 300)}, range(200, 300))
    assert 2 not in moved(after(busy(*[window] * 4, allowed_nids=(0, 1))))
    assert after(busy(*[window] * 4, mode=Mode.MANUAL)).moves == ()


def test_what_several_nodes_share_stays_where_it_may_not_be_distributed() -> None:
    window = bits({2: range(200, 300), 3: range(100, 300)}, range(100, 300))
    everywhere = moved(after(busy(*[window] * 4)))
    assert set().union(*everywhere.values()) == set(range(100, 300))
    assert moved(after(busy(*[window] * 4, interleaves=False))) == {3: set(range(100, 200))}
    # What may not be distributed takes no part of the budget: it is hotter than what moves.
    few = after(busy(*[window] * 4, interleaves=False), budget_bytes=100 * 4096)
    assert moved(few) == {3: set(range(100, 200))}


def test_no_more_is_moved_than_the_budget_allows() -> None:
    window = bits({2: range(200, 300)}, range(200, 300))
    assert after(busy(*[window] * 4), budget_bytes=10 * 4096).size_bytes <= 10 * 4096


def test_nothing_is_moved_to_a_full_node() -> None:
    window = bits({2: range(200, 300)}, range(200, 300))
    nodes = tuple(replace(one, free_bytes=0) if one.nid == 2 else one for one in host().nodes)
    assert 2 not in moved(after(busy(*[window] * 4), host=replace(host(), nodes=nodes)))


def test_a_plan_depends_on_evidence_and_state_alone() -> None:
    window = bits({2: range(200, 300)}, range(200, 300))
    snapshot = Snapshot(host(), (busy(*[window] * 4),), None, 0.25, now_ns=20 * S)
    _, state = plan_auto(replace(snapshot, now_ns=10 * S), State(), REAL)
    before = {name: memory.spent_ns for name, memory in state.memories.items()}
    first, second = (plan_auto(snapshot, state, REAL)[0] for _ in range(2))
    assert moved(first) == moved(second)
    assert {name: memory.spent_ns for name, memory in state.memories.items()} == before


def test_each_move_says_what_is_expected_of_it() -> None:
    window = bits({2: range(200, 300)}, range(200, 300))
    (move,) = after(busy(*[window] * 4)).moves
    assert "400 KiB" in move.reason and "ms" in move.reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_what_is_known_of_a_page_is_found_again_however_its_block_is_reported(seed: int) -> None:
    """Blocks are entries as a whole in one window, page by page in the next, or not there at all."""
    chance = np.random.default_rng(seed)

    def window() -> NodeBits:
        rows = np.zeros((5, 4 * 512), np.uint8)
        for block in range(4):
            kind = chance.integers(3)
            rows[0, block * 512 : block * 512 + 512] = kind == 1
            rows[1, block * 512 : block * 512 + 512] = (kind == 2) & (chance.random(512) < 0.5)
        packed = np.packbits(rows, axis=1, bitorder="little").view(np.uint64)
        return NodeBits(packed, packed)

    def page_of(pages: TouchedPages) -> list[int]:
        hvas = pages.hva_of(np.arange(pages.entries)).tolist()
        return [(hva - pages.ram.hva) // 4096 for hva in hvas]

    old, now = touched_pages(large(4, window(), window())), touched_pages(large(4, window(), window()))
    assert old is not None and now is not None
    sizes = old.sizes.tolist()
    for page, at in zip(page_of(now), entries_before((now,), (old,)).tolist(), strict=True):
        holding = [i for i, first in enumerate(page_of(old)) if first <= page < first + sizes[i]]
        assert holding == ([at] if at >= 0 else [])


def test_samples_of_nodes_count_as_their_accesses_were_counted() -> None:
    """Node 2 was caught at pages of node 0 as often as node 1; counters say that it makes nine in ten."""
    some = range(192)
    seen = busy(*[bits({1: some, 2: some}, some)] * 4)
    assert seen.pages is not None
    both = NodeHits(np.repeat(some, 2), np.tile([1, 2], len(some)))
    ranges = tuple(replace(one, sampled=True, counted=(both,) * 4) for one in seen.pages.ranges)
    sampled = replace(seen, pages=replace(seen.pages, ranges=ranges))
    shares = NodeShares((0.0, 0.1, 0.9, 0.0), (0.0, 0.1, 0.9, 0.0))
    goes = moved(after(replace(sampled, node_shares=shares)))
    assert goes.keys() == {2} and goes[2] >= set(some)
    # Bits tell themselves how often.
    assert moved(after(replace(seen, node_shares=shares))) == moved(after(seen))
    # All that node 2 does is in memory that cannot move: what can is left to node 1.
    of_two = NodeHits(np.zeros(9 * len(some), np.intp), np.full(9 * len(some), 2))
    pinned = replace(ranges[0].ram, hva=HVA * 2, movability=Movability.PINNED)
    more = replace(ranges[0], ram=pinned, counted=(of_two,) * 4)
    with_pinned = replace(seen.pages, ranges=(*ranges, more))
    assert moved(after(replace(sampled, pages=with_pinned, node_shares=shares))).keys() <= {1}
