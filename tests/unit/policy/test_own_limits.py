"""What a guest's own policy leaves out costs no other guest anything, and the guest itself no stakes."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.model.known_pages import with_history
from tests.unit.policy.spread_guests import narrow_host
from tests.unit.policy.views import HVA, NPAGES, bits, guest_view, host, ram
from vmplace.agent.limits import GuestLimits, limited
from vmplace.agent.run_recorder import plan_frame, snapshot_of
from vmplace.errors import OutsideError
from vmplace.policy import home
from vmplace.policy.plan import GuestSettings, GuestView, NodeShares, PlacementPlan, Snapshot
from vmplace.policy.policy_auto import AutoPolicy
from vmplace.sampling.recording_frames import PlannedGuest, checked_plan
from vmplace.sampling.sample import NodeBits
from vmplace.topology.domain_policy import Numatune

S, LIVED_S = 1e9, 86400.0
BY_NODE_2 = bits({2: range(NPAGES)}, range(NPAGES))
READ_BY_ALL = bits(dict.fromkeys(range(4), range(NPAGES)))


class Run:
    """Guests a and b of the same use, whose plans are cut to their limits, and carried out on their pages."""

    def __init__(self, a: GuestView, b: GuestView) -> None:
        self.guests = {"a": a, "b": b}
        self.nodes = {name: np.zeros(NPAGES, int) for name in self.guests}
        self.moved = dict.fromkeys(self.guests, 0)
        self.policy = AutoPolicy()

    def windows(self, count: int, budget_bytes: int) -> "Run":
        for now_s in np.arange(1, count + 1) + LIVED_S:
            views = tuple(self._view(name, float(now_s)) for name in self.guests)
            snapshot = Snapshot(host(), views, budget_bytes, 0.0, True, now_ns=float(now_s) * S)
            self._carry_out(limited(self.policy(snapshot), {one.topology.name: limits(one) for one in views}))
        return self

    def _view(self, name: str, now_s: float) -> GuestView:
        guest = self.guests[name]
        huge = int(guest.pages.ranges[0].huge[0]) if guest.pages else 0
        pages = guest_view([0, 2, 4, 6], self.nodes[name], ranges=list(guest.topology.ram), huge=huge).pages
        assert pages is not None
        ranges = tuple(with_history(one, *[BY_NODE_2] * 4) for one in pages.ranges)
        return replace(guest, pages=replace(pages, ranges=ranges), known_s=now_s)

    def _carry_out(self, plan: PlacementPlan) -> None:
        for move in plan.moves:
            for hva, npages, nid in zip(move.hva, move.npages, move.to_nid, strict=True):
                first = (int(hva) - HVA) // 4096
                self.nodes[move.guest][first : first + int(npages)] = nid
            self.moved[move.guest] += int(move.npages.sum())


def limits(guest: GuestView) -> GuestLimits:
    return GuestLimits(guest.topology, guest.settings, guest.pages, guest.numatune, guest.move_bytes)


def spanning(name: str, *, huge: int = 0, cell: int | None = None, **settings: object) -> GuestView:
    view = guest_view([0, 2, 4, 6], 0, ranges=[ram(cell)], huge=huge)
    return replace(
        view,
        topology=replace(view.topology, name=name),
        dram_per_us=50.0,
        cpus=4.0,
        settings=GuestSettings(**settings),  # type: ignore[arg-type]
    )


CUT = {
    "no move": spanning("a", moves=False),
    "bound": replace(spanning("a", cell=0), numatune=Numatune({0: (0,)})),
    "huge pages": spanning("a", huge=1, huge_pages=False),
    "rate": replace(spanning("a"), move_bytes=0),
}


@pytest.mark.parametrize("cut", CUT)
def test_what_is_cut_from_a_plan_takes_no_budget_and_stakes_nothing(cut: str) -> None:
    run = Run(CUT[cut], spanning("b")).windows(6, 512 * 4096)
    assert run.moved["a"] == 0 and run.policy.state.memories["a"].spent_ns == 0
    assert run.moved["b"] > 0
    # As much as beside nobody.
    assert run.moved["b"] == Run(replace(CUT["no move"]), spanning("b")).windows(6, 512 * 4096).moved["b"]


def test_of_a_guest_with_a_rate_no_more_is_staked_than_moves() -> None:
    slow = Run(replace(spanning("a"), move_bytes=600 * 4096), spanning("b")).windows(3, 1024 * 4096)
    fast = Run(spanning("a"), spanning("b")).windows(3, 1024 * 4096)
    assert 0 < slow.moved["a"] < fast.moved["a"] and slow.moved["b"] > fast.moved["b"]
    each_ns = fast.policy.state.memories["a"].spent_ns / fast.moved["a"]
    assert slow.policy.state.memories["a"].spent_ns == pytest.approx(slow.moved["a"] * each_ns)


def test_memory_may_move_among_nodes_that_all_its_cells_are_bound_to() -> None:
    bound = replace(spanning("a", cell=0), numatune=Numatune({0: (0, 2)}))
    assert home.allowed_nids(host(), bound) == (0, 2)
    run = Run(bound, spanning("b")).windows(6, 512 * 4096)
    assert run.moved["a"] > 0 and set(run.nodes["a"].tolist()) == {0, 2}


def test_of_cells_that_are_bound_to_different_nodes_each_stays_on_its_own() -> None:
    second = HVA + NPAGES * 4096
    view = guest_view([0, 2, 4, 6], 0, ranges=[ram(0), ram(1, second)])
    assert view.pages is not None
    ranges = tuple(with_history(one, *[BY_NODE_2] * 4) for one in view.pages.ranges)
    view = replace(view, pages=replace(view.pages, ranges=ranges), dram_per_us=50.0, cpus=4.0)
    view = replace(view, known_s=LIVED_S)

    def moved(bound: dict[int | None, tuple[int, ...]]) -> set[int]:
        policy = AutoPolicy()
        plans = [
            policy(Snapshot(host(), (replace(view, numatune=Numatune(bound)),), now_ns=(LIVED_S + now_s) * S))
            for now_s in (1, 2)
        ]
        return {int(hva >= second) for plan in plans for move in plan.moves for hva in move.hva.tolist()}

    assert moved({}) == {0, 1}
    assert moved({1: (0,)}) == {0}
    assert moved({0: (0, 1), 1: (2, 3)}) == {1}


def reader(window: NodeBits, **settings: object) -> GuestView:
    view = spanning("a", **settings)  # type: ignore[arg-type]
    assert view.pages is not None
    ranges = tuple(with_history(one, *[window] * 4) for one in view.pages.ranges)
    return replace(view, dram_per_us=200.0, pages=replace(view.pages, ranges=ranges))


def copied(guest: GuestView, seconds: int = 12) -> int:
    """Return of how many pages copies are planned in the last of some windows."""
    policy, plan = AutoPolicy(), PlacementPlan()
    for now_s in range(1, seconds + 1):
        plan = policy(Snapshot(host(), (guest,), None, 0.25, True, now_ns=now_s * S))
    return sum(one.pages for one in plan.replications)


@pytest.mark.parametrize(
    ("settings", "pages"),
    [
        ({}, NPAGES),
        ({"replicates": False}, 0),
        ({"replica_bytes": 0}, 0),
        # Each page has a copy on three nodes beside its own; pages that are alike go by blocks.
        ({"replica_bytes": 1600 * 4096}, 512),
        ({"moves": False}, NPAGES),
    ],
)
def test_copies_are_planned_within_the_guests_own_limits(settings: dict[str, object], pages: int) -> None:
    assert copied(reader(READ_BY_ALL, **settings)) == pages


def test_copies_that_were_not_made_gain_nothing_and_those_that_wait_are_not_planned() -> None:
    """KVM counts what copies there are; without a count, those that were planned are taken to be there."""

    def gained_ns(**known: object) -> float:
        policy = AutoPolicy()
        for now_s in range(1, 13):
            guest = replace(reader(READ_BY_ALL), **known)  # type: ignore[arg-type]
            policy(Snapshot(host(), (guest,), None, 0.25, True, now_ns=now_s * S))
        return policy.state.memories["a"].gained_ns

    assert gained_ns() == gained_ns(copied_bytes=3 * NPAGES * 4096) > 0
    assert gained_ns(copied_bytes=0) == 0
    assert copied(replace(reader(READ_BY_ALL), copies_wait=True)) == 0


def test_cells_that_are_bound_get_no_copies_elsewhere() -> None:
    assert copied(replace(reader(READ_BY_ALL), numatune=Numatune({None: (0, 1, 2, 3)}))) == NPAGES
    assert copied(replace(reader(READ_BY_ALL), numatune=Numatune({None: (0, 1, 2)}))) == 0


def test_a_guest_that_may_have_no_copies_is_distributed_where_a_controller_is_full() -> None:
    policy, nodes = AutoPolicy(), np.zeros(NPAGES, int)
    for now_s in range(1, 41):
        view = guest_view([0, 2, 4, 6], nodes, settings=GuestSettings(replicates=False))
        assert view.pages is not None
        ranges = tuple(with_history(one, *[READ_BY_ALL] * 4) for one in view.pages.ranges)
        view = replace(view, pages=replace(view.pages, ranges=ranges), dram_per_us=1.4, cpus=4.0)
        for move in policy(Snapshot(narrow_host(), (view,), None, 0.25, True, now_ns=now_s * S)).moves:
            nodes[((move.hva - HVA) // 4096).astype(int)] = move.to_nid
    assert np.bincount(nodes, minlength=4).tolist() == [NPAGES // 4] * 4


def test_at_home_what_is_cut_goes_by_the_guests_own_limits() -> None:
    def reported(**changed: object) -> tuple[int, list[str]]:
        view = replace(guest_view([2, 3], 0), **changed)  # type: ignore[arg-type]
        plan = home.plan(Snapshot(host(), (view,)))
        return plan.size_bytes // 4096, [stay.reason for stay in plan.stays]

    assert reported() == (NPAGES, [])
    rate = reported(move_bytes=1024 * 4096)
    assert rate == (1024, ["12 MiB stay: its policy's move_mb_per_s is used up for now"])
    huge = guest_view([2, 3], 0, huge=1).pages
    left = reported(pages=huge, settings=GuestSettings(huge_pages=False))
    assert left == (0, ["16 MiB stay: its policy leaves huge pages"])


def test_recordings_keep_what_memory_is_bound_to_and_those_that_do_not_are_read() -> None:
    guest = replace(spanning("a", cell=0), numatune=Numatune({0: (0, 1), None: (2,)}), move_bytes=4096)
    shares = NodeShares((0.5, 0.25, 0.25, 0.0), None)
    guest = replace(guest, copied_bytes=8192, copies_wait=True, lar=0.75, node_shares=shares)
    frame = checked_plan(plan_frame(Snapshot(host(), (guest,)), PlacementPlan()))
    (read,) = snapshot_of(frame, host(), {"a": (guest.topology, guest.pages)}).guests
    assert (read.numatune, read.move_bytes) == (guest.numatune, guest.move_bytes)
    assert (read.copied_bytes, read.copies_wait, read.lar) == (8192, True, 0.75)
    assert read.node_shares == shares
    older = PlannedGuest("a", {})
    assert (older.bound, older.move_bytes, older.copied_bytes, older.copies_wait) == ((), None, None, False)
    assert older.lar is None and older.node_shares is None


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_recordings_with_shares_that_cannot_be_are_refused(share: float) -> None:
    guest = replace(spanning("a", cell=0), node_shares=NodeShares((0.5,), (share,)))
    with pytest.raises(OutsideError):
        checked_plan(plan_frame(Snapshot(host(), (guest,)), PlacementPlan()))
