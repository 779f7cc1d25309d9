"""What a plan may use of a host is used once: by copies, by moves of pages, and by memory that goes home."""

from collections import Counter
from dataclasses import replace

from tests.unit.model.known_pages import with_history
from tests.unit.policy.views import GIB, HVA, NPAGES, bits, guest_view, host, ram, view
from vmplace.policy.plan import GuestView, PlacementPlan, Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.topology.guest import PAGE_BYTES
from vmplace.topology.host import HostTopology

S = 1e9
RESERVE_BYTES = 4 * GIB * 3 // 100


def with_free(*free_bytes: int) -> HostTopology:
    nodes = tuple(replace(n, free_bytes=free) for n, free in zip(host().nodes, free_bytes, strict=True))
    return replace(host(), nodes=nodes)


def reader(ranges: int) -> GuestView:
    """Return a guest with its memory on node 0, which vCPUs on all nodes read."""
    window = bits(dict.fromkeys(range(4), range(NPAGES)))
    rams = [replace(ram(hva=HVA + i * NPAGES * PAGE_BYTES), cell=None) for i in range(ranges)]
    seen = guest_view([0, 2, 4, 6] * 2, 0, ranges=rams)
    assert seen.pages is not None
    pages = tuple(with_history(one, *[window] * 4) for one in seen.pages.ranges)
    return replace(seen, pages=replace(seen.pages, ranges=pages), dram_per_us=200.0, cpus=4.0)


def copies_through(free_bytes: int, windows: int = 20) -> list[int]:
    """Return the bytes of copies on each of nodes 1 to 3 after each window; all are made as planned."""
    policy, made, after = AutoPolicy(), 0, []
    guest = reader(8)
    for now_s in range(3601, 3601 + windows):
        on = with_free(free_bytes, *[free_bytes - made] * 3)
        plan = policy(Snapshot(on, (replace(guest, known_s=now_s),), 256 << 20, 0.25, True, now_ns=now_s * S))
        made = sum(one.pages for one in plan.replications) * PAGE_BYTES
        after.append(made)
    return after


def test_copies_take_their_share_of_free_memory_once_not_in_each_window() -> None:
    free_bytes = RESERVE_BYTES * 2
    after = copies_through(free_bytes)
    assert 0.2 * free_bytes < after[-1] <= 0.25 * free_bytes


def test_copies_leave_the_reserve() -> None:
    assert copies_through(RESERVE_BYTES, 3) == [0, 0, 0]
    assert max(copies_through(RESERVE_BYTES + (8 << 20))) <= 8 << 20


def planned(on: HostTopology, budget_bytes: int | None = None) -> PlacementPlan:
    """Return a plan for a guest of which pages are known, and one whose memory goes home, both to node 1."""
    window = bits({1: range(NPAGES)}, range(NPAGES))
    spans = replace(view(*[window] * 4), dram_per_us=200.0, cpus=4.0, known_s=3600.0)
    home = guest_view([2, 3], 0)
    home = replace(home, topology=replace(home.topology, name="home", pid=43))
    return AutoPolicy()(Snapshot(on, (home, spans), budget_bytes, 0.0, True, now_ns=3600 * S))


SOME = NPAGES * 5 // 4


def test_memory_that_goes_home_gets_the_room_that_the_plan_by_pages_leaves() -> None:
    def moved(plan: PlacementPlan) -> dict[str, int]:
        return {move.guest: len(move.hva) for move in plan.moves}

    everything = moved(planned(host()))
    assert everything["home"] == NPAGES and everything["db1"] > SOME - NPAGES
    some = moved(planned(with_free(GIB, RESERVE_BYTES + (SOME + 1) * PAGE_BYTES, GIB, GIB)))
    assert some == {"db1": everything["db1"], "home": SOME - everything["db1"]}


def test_memory_that_goes_home_gets_its_share_of_the_budget_and_what_the_plan_by_pages_leaves() -> None:
    """That plan may be for pages that nobody can move, window by window: home is not to wait for it."""
    pages = Counter[str]()
    for move in planned(host(), SOME * PAGE_BYTES).moves:
        pages[move.guest] += int(move.npages.sum())
    assert sorted(pages.values()) == sorted((min(NPAGES, SOME), max(SOME // 2, SOME - NPAGES)))
