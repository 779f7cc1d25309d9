"""Guests on one node of which only samples tell, on a host whose controllers are full: spread, and then?"""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import with_history
from tests.unit.policy.spread_guests import BUSY, CALM, Spread, narrow_host, sampled
from tests.unit.policy.views import HVA, NPAGES, bits
from vmplace.model.evidence import entries_of
from vmplace.policy.expected_accesses import Horizon
from vmplace.policy.full_controllers import CALM_S, Crowding, asked_shares, asks_of
from vmplace.policy.loads import load
from vmplace.policy.plan import GuestSettings, GuestView, Mode, PlacementPlan, Snapshot
from vmplace.policy.plan_state import State
from vmplace.policy.planner_view import host_view
from vmplace.policy.policy_auto import AutoPolicy, by_pages
from vmplace.topology.guest import Movability


@pytest.mark.parametrize(("mb_per_s", "spreads"), [(20, False), (BUSY, True)])
def test_a_sampled_guest_at_home_spreads_once_its_controller_is_filled(
    mb_per_s: float, spreads: bool
) -> None:
    """As BWAP does, which has no samples: other nodes' controllers are idle."""
    host = Spread()
    guest = host.guest("a", mb_per_s)
    assert asked_shares(narrow_host(), asks_of(narrow_host(), (guest,)))[0] == pytest.approx(mb_per_s / 100)
    for _ in range(15):
        host.window(host.guest("a", mb_per_s))
    assert (host.away() > NPAGES // 2) == spreads


def test_two_guests_fill_a_controller_together() -> None:
    host = Spread()
    guest = host.guest("a", 30)
    asks = asks_of(narrow_host(), (guest, replace(guest)))
    assert asked_shares(narrow_host(), asks)[0] == pytest.approx(0.6)


def moved_by_phases(node: np.ndarray, *, forgets: bool) -> int:
    """Return the pages that move in three calm phases, and as soon as the guest is busy again."""
    host, moved = Spread(node={"a": node.copy()}).busy(), 0
    for _ in range(3):
        if forgets:
            host.policy.state = replace(host.policy.state, crowding=Crowding())
        calm = [pages_of(host.window(host.guest("a", CALM))) for _ in range(15)]
        busy = [pages_of(host.window(host.guest("a", BUSY))) for _ in range(15)]
        moved += sum(calm) + sum(busy[:2])
    return moved


@pytest.mark.slow
@pytest.mark.parametrize("node", [np.zeros(NPAGES, int), np.full(NPAGES, 3), np.arange(NPAGES) % 4])
def test_calm_phases_do_not_send_all_memory_home_and_out_again(node: np.ndarray) -> None:
    """Wherever it lay at first."""
    assert moved_by_phases(node, forgets=False) < moved_by_phases(node, forgets=True) / 3


def test_after_ten_minutes_of_calm_all_memory_goes_home() -> None:
    host = Spread().busy()
    host.window(host.guest("a", CALM))
    assert host.away()
    host.now_s += int(CALM_S)
    host.window(host.guest("a", CALM))
    assert not host.away()


def pages_of(plan: PlacementPlan) -> int:
    return sum(int(move.npages.sum()) for move in plan.moves)


def once(guest: GuestView, what: str) -> GuestView:
    """Return the guest as a window shows it in which something is odd."""
    assert guest.pages is not None
    if what == "nothing is known of its pages":
        return replace(guest, pages=None)
    if what == "nobody counts":
        return replace(guest, dram_per_us=None)
    if what == "vCPUs float":
        vcpus = tuple(replace(one, cpus=(0, 1, 2, 3)) for one in guest.topology.vcpus)
        return replace(guest, topology=replace(guest.topology, vcpus=vcpus))
    is_first = what == "the first window"
    ranges = tuple(
        replace(one, history=1) if is_first else replace(one, sampled=False) for one in guest.pages.ranges
    )
    return replace(guest, pages=replace(guest.pages, ranges=ranges))


@pytest.mark.parametrize(
    "what",
    ["nothing", "nothing is known of its pages", "nobody counts", "vCPUs float", "the first window", "bits"],
)
def test_one_odd_window_sends_no_memory_home(what: str) -> None:
    host = Spread().busy()
    spread = host.away()
    calm = host.guest("a", CALM)
    plan = host.window(calm if what == "nothing" else once(calm, what))
    assert "a" in by_pages(plan)
    host.window(host.guest("a", CALM))
    assert host.away() > 0.9 * spread


@pytest.mark.parametrize("of_others", [False, True])
def test_a_window_without_the_guest_sends_no_memory_home(of_others: bool) -> None:
    """As when the policy fails for another guest, and is asked for each guest alone."""
    host = Spread()
    host.node["b"] = np.ones(NPAGES, int)
    host.busy()
    spread = host.away()
    host.window(*([host.guest("b", CALM)] if of_others else []))
    assert "a" in host.policy.state.memories
    host.window(host.guest("a", CALM))
    assert host.away() > 0.9 * spread


def test_who_is_gone_for_long_is_forgotten() -> None:
    host = Spread().busy()
    host.node["b"] = np.ones(NPAGES, int)
    for wait_s in (60, CALM_S):
        assert host.policy.state.crowding.full_s
        host.now_s += int(wait_s)
        host.window(host.guest("b", CALM))
        assert "a" not in host.policy.state.memories and "a" not in host.policy.state.known_s
    assert not host.policy.state.crowding.full_s


def test_a_guest_of_the_same_name_has_no_part_in_what_another_gained() -> None:
    host = Spread().busy(40)
    gained = host.policy.state.memories["a"].gained_ns
    (ram,) = host.guest("a", BUSY).topology.ram
    guest = sampled("a", [0, 1, 0, 1], np.zeros(NPAGES, int), BUSY, known_s=1.0)
    assert guest.pages
    elsewhere = replace(ram, hva=ram.hva + (1 << 40))
    ranges = tuple(replace(one, ram=elsewhere) for one in guest.pages.ranges)
    topology = replace(guest.topology, ram=(elsewhere,))
    host.policy(
        Snapshot(
            narrow_host(),
            (replace(guest, topology=topology, pages=replace(guest.pages, ranges=ranges)),),
            None,
            0,
            now_ns=41e9,
        )
    )
    memory = host.policy.state.memories["a"]
    assert gained > 0 and memory.gained_ns == 0 and memory.born_ns > 0


def test_a_burst_on_one_node_keeps_no_guest_of_another_from_going_home() -> None:
    """Guest "b" was moved to node 1 by hand; its memory is still on node 0, and samples see little of it."""
    host = Spread()
    host.node["b"] = np.zeros(NPAGES, int)
    few = [bits({1: range(64)})] * 4

    def other() -> GuestView:
        guest = host.guest("b", CALM)
        assert guest.pages
        ranges = tuple(replace(with_history(one, *few), sampled=True) for one in guest.pages.ranges)
        return replace(guest, pages=replace(guest.pages, ranges=ranges))

    for _ in range(8):
        host.window(host.guest("a", BUSY), other())
        assert not host.away("b")
    assert host.away()


def test_a_small_guest_of_a_full_node_goes_home() -> None:
    """Its memory is no relief elsewhere, and a neighbour that is busy now and then would keep it away."""
    host = Spread()
    host.node["c"] = np.full(NPAGES, 3)
    small = sampled("c", [0, 1], host.node["c"], 1.0, known_s=10.0)
    for _ in range(3):
        host.window(host.guest("a", BUSY), small)
    assert (host.node["c"] == 0).all() and host.away()


def test_small_guests_that_fill_a_controller_together_stay_spread() -> None:
    """Together they ask for more than a controller serves."""
    policy, spread = AutoPolicy(), np.arange(NPAGES) % 4
    names = [f"g{number}" for number in range(30)]
    for now_s in (1, 2):
        guests = tuple(sampled(name, [0, 1], spread, 4.0, known_s=3600.0) for name in names)
        plan = policy(Snapshot(narrow_host(), guests, None, 0, now_ns=now_s * 1e9))
    assert len({move.guest for move in plan.moves if len(move.hva) > NPAGES // 2}) <= 2


def test_a_guest_that_is_placed_by_hand_is_not_said_to_wait() -> None:
    host = Spread().busy()
    manual = replace(host.guest("a", BUSY), settings=GuestSettings(mode=Mode.MANUAL))
    (stay,) = host.window(manual).stays
    assert "by hand" in stay.reason


def test_where_no_controller_is_full_the_plan_knows_no_loads() -> None:
    """Else others would give way to a protected guest that lacks nothing."""
    host = Spread()
    host.node["b"] = np.ones(NPAGES, int)
    views = (host.guest("a", 40), host.guest("b", 40))
    snapshot = Snapshot(narrow_host(), views, now_ns=1e9)
    assert views[0].pages
    entries = entries_of(views[0].pages, 1.0)
    assert entries is not None
    for crowding, count in ((Crowding(), 1), (Crowding({"a": (0, 1.0)}), 2)):
        state = State(crowding=crowding)
        view, traffics = host_view(snapshot, [views[0]], {"a": entries}, state, Horizon())
        assert len(view.guests) == len(traffics) == count


def test_a_load_that_comes_home_counts_there() -> None:
    """Else neighbours would step out of its way onto the node that it comes to."""
    host = Spread(node={"a": np.zeros(NPAGES, int), "b": np.zeros(NPAGES, int)})
    for _ in range(15):
        host.window(host.guest("a", 60), host.guest("b", 45))
    once_home = np.bincount(host.node["a"], minlength=4)
    assert not host.away("b") and once_home[1] < once_home[2:].min()


def test_a_guest_that_touches_nothing_for_a_while_keeps_its_account() -> None:
    host = Spread().busy()
    before = host.policy.state.memories["a"]
    guest = host.guest("a", BUSY)
    assert guest.pages and before.spent_ns > 0
    idle = [bits({0: range(0)})] * 4
    ranges = tuple(replace(with_history(one, *idle), sampled=True) for one in guest.pages.ranges)
    host.window(replace(guest, pages=replace(guest.pages, ranges=ranges)))
    host.window(host.guest("a", BUSY))
    after = host.policy.state.memories["a"]
    assert after.spent_ns >= before.spent_ns and after.born_ns == before.born_ns


def test_a_guest_whose_vcpus_go_to_another_node_is_followed() -> None:
    host = Spread().busy()
    there = sampled("a", [2, 3, 2, 3], host.node["a"], CALM, 1)
    host.window(there)
    assert (host.node["a"] == 1).all()


def test_in_the_first_window_after_a_start_a_busy_guest_stays() -> None:
    """Else its memory would go home in that window, and out again in the next."""
    host = Spread().busy()
    spread, host.policy = host.away(), AutoPolicy()
    plan = host.window(once(host.guest("a", BUSY), "the first window"))
    assert host.away() == spread
    (stay,) = plan.stays
    assert "too little" in stay.reason


NOT_DISTRIBUTED = [(0, None, 0), (3, None, 0), (1, (1, 2, 3), 1), (3, (1, 3), 1)]
"""Where memory is at first, where the operator allows it, and the nearest of these nodes."""


@pytest.mark.parametrize("is_sampled", [True, False])
@pytest.mark.parametrize(("at_first", "allowed_nids", "nearest"), NOT_DISTRIBUTED)
def test_a_guest_that_is_not_to_be_distributed_goes_home_or_stays(
    at_first: int, allowed_nids: tuple[int, ...] | None, nearest: int, is_sampled: bool
) -> None:
    host = Spread(node={"a": np.full(NPAGES, at_first)})
    settings = GuestSettings(interleaves=False, allowed_nids=allowed_nids)
    for _ in range(40):
        guest = replace(host.guest("a", BUSY), settings=settings)
        host.window(guest if is_sampled else once(guest, "bits"))
    # Bits tell enough for a plan that leaves some where it is, as the home is full.
    assert set(host.node["a"]) <= ({nearest} if is_sampled else {nearest, at_first})


def test_private_pages_of_a_guest_on_two_nodes_stay_on_these_if_it_is_not_to_be_distributed() -> None:
    node = np.repeat([0, 1], NPAGES // 2)
    window = [bits({0: range(NPAGES // 2), 1: range(NPAGES // 2, NPAGES)})] * 4
    policy = AutoPolicy()
    for now_s in range(1, 16):
        guest = sampled("a", [0, 1, 2, 3], node, 190, known_s=float(now_s))
        assert guest.pages
        ranges = tuple(with_history(one, *window) for one in guest.pages.ranges)
        pages, settings = replace(guest.pages, ranges=ranges), GuestSettings(interleaves=False)
        guest = replace(guest, pages=pages, settings=settings)
        for move in policy(Snapshot(narrow_host(), (guest,), None, 0, now_ns=now_s * 1e9)).moves:
            node[((move.hva - HVA) // 4096).astype(int)] = move.to_nid
    assert set(node) <= {0, 1}


def test_a_guest_that_is_not_to_be_distributed_takes_no_budget_of_others() -> None:
    host = Spread(node={"a": np.zeros(NPAGES, int), "c": np.zeros(NPAGES, int)})
    for _ in range(20):
        host.now_s += 1
        guests = [
            sampled(name, [0, 1, 0, 1], host.node[name], 45, known_s=float(host.now_s)) for name in "ac"
        ]
        guests[0] = replace(guests[0], settings=GuestSettings(interleaves=False))
        snapshot = Snapshot(narrow_host(), tuple(guests), 1024 * 4096, 0, True, now_ns=host.now_s * 1e9)
        for move in host.policy(snapshot).moves:
            host.node[move.guest][((move.hva - HVA) // 4096).astype(int)] = move.to_nid
    assert (host.node["a"] == 0).all()
    assert (host.node["c"] != 0).sum() > NPAGES // 4


def test_the_plan_knows_the_load_of_guests_that_it_does_not_move() -> None:
    """Node 1 is as busy as node 0 was: what leaves node 0 goes to nodes 2 and 3."""
    host = Spread()
    host.node["b"] = np.ones(NPAGES, int)
    for _ in range(15):
        host.window(host.guest("a", BUSY), replace(host.guest("b", 49)))
    counts = np.bincount(host.node["a"], minlength=4)
    assert counts[1] < counts[2:].min() and not host.away("b")


@pytest.mark.parametrize(
    ("movability", "stays", "nid"),
    [(Movability.MOVABLE, False, 0), (Movability.MOVABLE, True, 3), (Movability.PINNED, False, 3)],
)
def test_a_load_lies_where_its_memory_goes(movability: Movability, stays: bool, nid: int) -> None:
    guest = sampled("c", [0, 1], np.full(NPAGES, 3), 45, known_s=10.0)
    assert guest.pages
    ranges = tuple(replace(one, ram=replace(one.ram, movability=movability)) for one in guest.pages.ranges)
    guest = replace(guest, pages=replace(guest.pages, ranges=ranges))
    evidence = load(Snapshot(narrow_host(), (guest,)), guest, 640.0, 4.0, None, stays=stays)
    assert set(evidence.node) == {nid}
    assert evidence.heat.sum(axis=0).tolist() == [640.0, 0.0, 0.0, 0.0]


def test_a_load_is_where_its_pages_are() -> None:
    """Memory that cannot move does not come home: its node is the one that is busy."""
    host = Spread()
    pinned = sampled("c", [0, 1], np.full(NPAGES, 3), 45, known_s=10.0)
    assert pinned.pages
    rams = tuple(replace(one.ram, movability=Movability.PINNED) for one in pinned.pages.ranges)
    ranges = tuple(replace(one, ram=ram) for one, ram in zip(pinned.pages.ranges, rams, strict=True))
    pinned = replace(
        pinned,
        topology=replace(pinned.topology, ram=rams),
        pages=replace(pinned.pages, ranges=ranges),
    )
    for _ in range(15):
        host.window(host.guest("a", 60), pinned)
    counts = np.bincount(host.node["a"], minlength=4)
    assert counts[3] < counts[:3].min() and counts[0] > 0
