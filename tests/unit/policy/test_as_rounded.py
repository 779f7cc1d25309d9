"""Plans are made in fractions of guests, and carried out in whole pages: what is lost between the two?"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tests.unit.model.known_pages import with_history
from tests.unit.policy.spread_guests import narrow_host, sampled
from tests.unit.policy.test_host_plan import guest, two_nodes
from tests.unit.policy.views import HVA, NPAGES, bits, guest_view
from vmplace.model.described_memory import described_memory
from vmplace.policy.as_rounded import worthwhile
from vmplace.policy.descent import rounded, start_of
from vmplace.policy.host_view import GuestEvidence
from vmplace.policy.page_task import PageTask
from vmplace.policy.plan import Snapshot
from vmplace.policy.policy_auto import AutoPolicy

SYSTEM = described_memory(
    (0, 1), np.array([[10.0, 20.0], [20.0, 10.0]]), np.array([[1e7, 5e6], [5e6, 1e7]]), np.ones(2)
)
"""Two nodes with room and bandwidth enough for all."""
NARROW = described_memory((0, 1), np.array([[10.0, 20.0], [20.0, 10.0]]), np.full((2, 2), 4000.0), np.ones(2))
"""Two whose controllers a few guests fill."""


@dataclass
class Crowd:
    """Guests of 16 MiB, alike, that access memory from node 0; what is planned is done."""

    guests: int
    mb_per_s: float
    node: dict[str, np.ndarray] = field(default_factory=dict)
    policy: AutoPolicy = field(default_factory=AutoPolicy)
    now_s: int = 0

    def window(self, without: str = "") -> dict[str, int]:
        """Let a window pass, in which one guest may not be seen; return pages moved by guest."""
        self.now_s += 1
        each = self.mb_per_s / self.guests
        views = [sampled(f"g{n}", [0, 1, 0, 1], self.node[f"g{n}"], each) for n in range(self.guests)]
        views = [
            replace(view, known_s=3600.0 + self.now_s) for view in views if view.topology.name != without
        ]
        plan = self.policy(Snapshot(narrow_host(), tuple(views), None, 0, True, now_ns=self.now_s * 1e9))
        moved: dict[str, int] = {}
        for move in plan.moves:
            self.node[move.guest][((move.hva - HVA) // 4096).astype(int)] = move.to_nid
            moved[move.guest] = moved.get(move.guest, 0) + len(move.hva)
        return moved


def crowd(guests: int, *, is_apart: bool, mb_per_s: float = 190.0) -> Crowd:
    """Return guests whose pages lie on all nodes in turn, or on node 0."""
    at = np.arange(NPAGES) % 4 if is_apart else np.zeros(NPAGES, int)
    return Crowd(guests, mb_per_s, {f"g{n}": at.copy() for n in range(guests)})


@pytest.mark.parametrize("guests", [pytest.param(100, marks=pytest.mark.slow), 30])
@pytest.mark.parametrize("is_apart", [True, False], ids=["apart at first", "on one node at first"])
def test_many_small_guests_come_to_rest_where_all_controllers_are_busy(guests: int, is_apart: bool) -> None:
    """They ask for half of what the host serves: few pages each, alike, and nothing that changes."""
    host = crowd(guests, is_apart=is_apart)
    moved = [sum(host.window().values()) for _ in range(10)]
    assert moved[0] > 0 and moved[-4:] == [0] * 4
    # Where each guest begins elsewhere in the sequence, the first plan is nearly the last one.
    assert not is_apart or sum(moved[1:]) < 0.1 * moved[0]
    counts = np.bincount(np.concatenate([*host.node.values()]), minlength=4)
    assert counts.max() < 0.6 * counts.sum()


def test_others_rest_where_a_guest_is_not_seen_now_and_then() -> None:
    """Its place in the list is another guest's then, and no reason to place that one anew."""
    host = crowd(30, is_apart=False)
    for _ in range(8):
        host.window()
    moved = [sum(host.window(f"g{n}" if n % 2 else "").values()) for n in range(6)]
    assert sum(moved) < 0.03 * 30 * NPAGES


def evidence(name: str, heat: list[list[float]], node: int, parallelism: float = 4.0) -> GuestEvidence:
    return GuestEvidence(
        name=name,
        heat=np.array(heat),
        written=np.ones(len(heat), bool),
        node=np.full(len(heat), node, np.int8),
        worker=np.ones(2, bool),
        windows=np.ones(len(heat), np.int64),
        read_ratio=None,
        parallelism=parallelism,
        think_ns=50.0,
        mlp=2.5,
    )


@pytest.mark.parametrize("losers", [1, 9, 60])
def test_a_guest_that_gains_is_placed_though_others_would_lose_more(losers: int) -> None:
    """All of it is used from node 1 and lies on node 0; the plans of the others are the wrong way."""
    wins = evidence("wins", [[0.0, 9.0]] * 8, 0)
    others = [evidence(f"g{n}", [[9.0, 0.0]] * 4, 0) for n in range(losers)]
    tasks = [
        PageTask(one, np.zeros(len(one.node), bool), np.ones(len(one.node)))
        for one in (*others[: losers // 2], wins, *others[losers // 2 :])
    ]
    plans = [np.ones(len(task.guest.node), np.int8) for task in tasks]
    kept = worthwhile(SYSTEM, tasks, plans)
    at = {task.guest.name: set(places.tolist()) for task, places in zip(tasks, kept, strict=True)}
    assert at == {"wins": {1}} | {one.name: {0} for one in others}


def task(name: str, user: int, node: int, parallelism: float, price: float = 0.1, **more: Any) -> PageTask:
    """Return the task of a guest with 8 pages on one node that another one uses, or the same."""
    heat = [[9.0, 0.0], [0.0, 9.0]][user]
    guest = replace(evidence(name, [heat] * 8, node, parallelism), **more)
    return PageTask(guest, np.zeros(8, bool), np.full(8, price))


def kept_nids(tasks: list[PageTask], planned: list[int]) -> list[int]:
    """Return where each guest's pages are to be, for plans that send them to one node each."""
    plans = [np.full(8, node, np.int8) for node in planned]
    return [int(places[0]) for places in worthwhile(NARROW, tasks, plans)]


@pytest.mark.parametrize(("importance", "node"), [(1.0, 1), (30.0, 0)])
def test_time_of_a_protected_guest_counts_as_often_as_in_the_descent(importance: float, node: int) -> None:
    """Alone, "wins" is 26 % faster and "other" 7 % slower."""
    other = replace(task("other", 1, 1, 1.0), importance=importance)
    assert kept_nids([task("wins", 1, 0, 2.0), other], [1, 1]) == [node, 1]


@pytest.mark.parametrize("nid", [0, 1])
@pytest.mark.parametrize(("bound", "node"), [(None, 1), (0.005, 0)])
def test_a_part_of_a_plan_spares_who_is_protected(bound: float | None, node: int, nid: int) -> None:
    """The whole plan makes way for it, or costs it more still: "costs" moves, but pays too much for that."""
    tasks = [
        task("wins", 1, 0, 2.0),
        task("other", 1, 1, 1.0, slowdown_bound=bound),
        task("costs", nid, nid, 1.0, price=1000.0),
    ]
    assert kept_nids(tasks, [1, 1, 1 - nid]) == [node, 1, nid]


def test_a_guest_that_others_would_make_slower_is_tried_by_itself() -> None:
    """With all of them, "alone" is 65 % slower, and is the first to be left out; by itself it helps all."""
    tasks = [task("alone", 0, 0, 2.0), task("crowds", 1, 0, 8.0), task("other", 1, 1, 2.0)]
    assert kept_nids(tasks, [1, 1, 1]) == [1, 0, 1]


@pytest.mark.parametrize("mb_per_s", [10.0, 90.0])
def test_a_guest_of_one_block_comes_home_whatever_its_name_is(mb_per_s: float) -> None:
    """It runs on node 1, and its block is the only one of 2 MiB on node 0 that is used."""
    away = [name for name in (f"guest-{n:02d}" for n in range(16)) if nid_of_block(name, mb_per_s) != 1]
    assert not away


def nid_of_block(name: str, mb_per_s: float) -> int:
    policy, node = AutoPolicy(), np.zeros(NPAGES, int)
    for now_s in range(1, 5):
        seen = guest_view([2, 3, 2, 3], node, huge=1)
        assert seen.pages
        ranges = tuple(with_history(one, *[bits({1: range(512)})] * 4) for one in seen.pages.ranges)
        guest = replace(
            seen,
            topology=replace(seen.topology, name=name),
            pages=replace(seen.pages, ranges=ranges, guest=name),
            dram_per_us=mb_per_s / 64,
            cpus=4.0,
            known_s=600.0 + now_s,
        )
        plan = policy(Snapshot(narrow_host(), (guest,), None, 0, True, now_ns=now_s * 1e9))
        for move in plan.moves:
            for at, npages in zip((move.hva - HVA) // 4096, move.npages, strict=True):
                node[int(at) : int(at) + int(npages)] = move.to_nid[0]
    return int(node[0])


def test_a_price_above_the_gain_leaves_all_as_it_is() -> None:
    guest = evidence("g", [[0.0, 9.0]] * 8, 0)
    gain_ns = float(guest.heat.sum() * (SYSTEM.latency[1, 0] - SYSTEM.latency[1, 1])) / 8
    for price, node in ((0.5 * gain_ns, 1), (1.5 * gain_ns, 0)):
        task = PageTask(guest, np.zeros(8, bool), np.full(8, price))
        (kept,) = worthwhile(SYSTEM, [task], [np.ones(8, np.int8)])
        assert set(kept.tolist()) == {node}


def test_a_page_that_may_not_move_keeps_no_other_where_it_is() -> None:
    """It stays whatever the plan says (``allowed_places``), and costs nothing."""
    guest = evidence("g", [[0.0, 9.0]] * 8, 0)
    task = PageTask(guest, np.zeros(8, bool), np.array([np.inf] + [1.0] * 7))
    (kept,) = worthwhile(SYSTEM, [task], [np.ones(8, np.int8)])
    assert set(kept[1:].tolist()) == {1}


@pytest.mark.parametrize("name", ["", "vm-\udc80", "\ud800"], ids=["empty", "not UTF-8", "a lone surrogate"])
def test_any_name_tells_where_its_guest_begins(name: str) -> None:
    assert 0 <= start_of(name) < 1


@pytest.mark.parametrize("pages", [1, 2, 8])
def test_guests_of_few_pages_are_distributed_over_the_mixture_together(pages: int) -> None:
    weights = np.array([0.5, 0.3, 0.2])
    starts = np.random.default_rng(7).random(400)
    chosen = np.concatenate([rounded(pages, weights, start) for start in starts])
    assert np.bincount(chosen) / len(chosen) == pytest.approx(weights, abs=0.05)


def test_what_a_protected_guest_lost_by_its_own_moves_holds_up_no_other() -> None:
    """Its bound is what others may cost it: that its own pages lay better at first is not their doing."""
    system, here, far = two_nodes(), np.zeros(20, np.int8), np.ones(20, np.int8)
    own = replace(guest(np.ones((20, 1)) * [[1.0, 0.0]]), name="p", node=far, slowdown_bound=0.005)
    other = replace(guest(np.ones((20, 1)) * [[0.0, 1000.0]]), name="o", node=here)
    tasks = [PageTask(one, np.zeros(20, bool), np.full(20, 1.0)) for one in (own, other)]
    assert worthwhile(system, tasks, [far, far], [here, here])[1].all()
