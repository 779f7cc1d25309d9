"""The guard, against guests whose gain or loss is known beforehand."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.test_host_plan import guest, two_nodes
from vmplace.policy import guard
from vmplace.policy.expected_accesses import Horizon
from vmplace.policy.host_plan import HostPlanner
from vmplace.policy.host_view import REPLICATED, Counters, GuestEvidence, HostView, Room, traffic
from vmplace.policy.move_gains import PastMove

MS = 1e6


def seen(node: int, *, remote: bool = True, latency: float = 200.0) -> GuestEvidence:
    """100 pages used by node 0 alone (or, not remote, by node 1), lying on ``node``; 0.01 accesses per ns."""
    pages = guest([[100, 0] if remote else [0, 100]] * 100, node=node)
    accesses = traffic(pages.heat, pages.node) / pages.heat.sum() * 0.01
    return replace(pages, recent=pages.heat, counters=Counters(accesses, latency, 0.5, 0.5, 0.0))


def view(*guests: GuestEvidence, now_ms: float, move_ns: float = 4000.0) -> HostView:
    return HostView(two_nodes(), np.full(2, 1e9), guests, move_ns, 0.0, now_ms * MS)


def looked(memory: guard.Memory | None, pages: GuestEvidence, now_ms: float) -> guard.Memory:
    known = {} if memory is None else {pages.name: memory}
    return guard.remembered(known, view(pages, now_ms=now_ms))[pages.name]


def test_a_budget_never_holds_a_hundredth_of_a_guests_time_unless_something_was_gained():
    first = looked(None, seen(1), 0)
    assert first.budget_ns(0.0) == 0.0
    assert all(first.budget_ns(lived * MS) < 0.01 * lived * MS for lived in (1, 10, 100, 1000))
    assert first.budget_ns(1000 * MS) == guard.CREDIT_NS + 1000 * MS * guard.TIME_SHARE


def test_a_new_guest_may_lose_no_more_than_docs_say():
    """docs/design/joint-plan.md, What a guest may lose: 0.55 % of its time at first."""
    first = looked(None, seen(1), 0)
    assert [first.budget_ns(lived * MS) / (lived * MS) for lived in (1, 100)] == pytest.approx([0.0055] * 2)


def test_a_protected_guests_credit_is_within_its_bound():
    first = looked(None, seen(1), 0)
    assert all(0 < first.budget_ns(lived * MS, 0.005) < 0.005 * lived * MS for lived in (1, 10, 100, 1000))


def test_what_moves_gained_is_reckoned_from_where_the_pages_lay_before():
    before = looked(None, seen(1), 0)
    # Remote accesses take 200, local ones 100: (100 think + 200 / 2) / (100 + 100 / 2) is a third more.
    after = looked(before, seen(0), 30)
    assert abs(after.gained_ns - 30 * MS / 3) < 0.5 * MS
    assert after.budget_ns(30 * MS) > 9 * MS


def test_moves_that_hurt_empty_the_budget():
    after = looked(looked(None, seen(1, remote=False), 0), seen(0, remote=False), 30)
    assert after.gained_ns < -7 * MS
    assert after.budget_ns(30 * MS) == 0.0


@pytest.mark.parametrize("days", [1, 30, 365])
def test_however_long_a_guest_lived_a_loss_ends_within_minutes(days: int):
    """By 5 %, of its real time, of which the planner's is a part (Horizon)."""
    lived_ns, minutes = days * 86400e9 / Horizon().scale, 60e9 / Horizon().scale
    memory = replace(looked(None, seen(1), 0), gained_ns=0.3 * lived_ns, best_ns=0.3 * lived_ns)
    after = [replace(memory, gained_ns=memory.gained_ns - 0.05 * late * minutes) for late in (1, 10)]
    assert [guard.is_lost(one, lived_ns) for one in after] == [False, True]


def judged(cost_ms: float, *, gains: bool, copies: bool = False) -> guard.Memory:
    memory, pages = looked(None, seen(1, remote=gains), 0), np.arange(100)
    nodes = np.ones(100, np.int8), np.zeros(100, np.int8)
    trial = PastMove(pages, *nodes, cost_ms * MS, 0.0, copies)
    return looked(replace(memory, trials=(trial,)), seen(0, remote=gains), 100)


def test_trials_that_did_not_earn_their_cost_raise_the_hurdle_and_good_ones_lower_it():
    poor, good = judged(5, gains=False), judged(5, gains=True)
    assert poor.hurdle(copies=False) > 2
    assert good.hurdle(copies=False) < 1
    assert poor.hurdle(copies=True) == 2.0
    assert judged(5, gains=False, copies=True).hurdle(copies=True) > 4


def test_the_hurdle_has_bounds():
    assert judged(1e6, gains=False).hurdle(copies=False) == guard.HURDLE_RANGE[1]


def promised(planner: HostPlanner) -> GuestEvidence:
    start = seen(1)
    planner.plan(view(start, now_ms=-1000, move_ns=1.0))
    planner.plan(view(start, now_ms=0, move_ns=1.0))
    return start


def test_a_plan_after_which_latency_rose_is_undone_and_the_guest_left_alone_for_longer_each_time():
    planner = HostPlanner()
    promised(planner)
    worse = seen(0, latency=230.0)
    (undone,) = planner.plan(view(worse, now_ms=2, move_ns=1.0)).pages
    assert (undone == 1).all()
    alone = planner.memories["g"]
    assert alone.budget_ns(alone.alone_until_ns - 1) == 0.0 < alone.budget_ns(alone.alone_until_ns)
    assert alone.left_alone_ns == 2 * guard.LEFT_ALONE_NS


def test_a_plan_is_kept_if_latency_fell_or_the_guest_began_to_do_something_else():
    for after in (seen(0, latency=120.0), replace(seen(0, latency=230.0), think_ns=150.0)):
        planner = HostPlanner()
        promised(planner)
        (kept,) = planner.plan(view(after, now_ms=2, move_ns=1.0)).pages
        assert (kept == 0).all()


def test_a_guest_whose_plans_kept_their_promise_is_left_alone_for_a_shorter_while():
    planner = HostPlanner()
    promised(planner)
    planner.plan(view(seen(0, latency=120.0), now_ms=2, move_ns=1.0))
    assert planner.memories["g"].left_alone_ns == guard.LEFT_ALONE_NS / 2


def test_a_plan_is_kept_if_the_accesses_come_from_other_nodes_now():
    planner = HostPlanner()
    promised(planner)
    counters = Counters(np.array([[0.005, 0.0], [0.005, 0.0]]), 230.0, 0.5, 0.5, 0.0)
    after = replace(seen(0), counters=counters)
    (kept,) = planner.plan(view(after, now_ms=2, move_ns=1.0)).pages
    assert (kept == 0).all()


def test_no_more_is_spent_than_the_budget_holds():
    planner, dear = HostPlanner(), (guard.CREDIT_NS + 1000 * MS * guard.TIME_SHARE) * 4 / 20
    pages = replace(seen(1), heat=seen(1).heat * 1e6)
    planner.plan(view(pages, now_ms=-1000, move_ns=dear))
    (plan,) = planner.plan(view(pages, now_ms=0, move_ns=dear)).pages
    # A page's pause is a quarter of its price (four vCPUs); half of the budget is set aside for the way back.
    assert int((plan == 0).sum()) == 10


def test_what_gains_most_for_its_price_is_bought_first():
    """Half of the pages are accessed more, but from both nodes, so that moving one gains less."""
    dear = (guard.CREDIT_NS + 1000 * MS * guard.TIME_SHARE) * 4 / 20
    heat = np.array([[30e6, 20e6], [20e6, 0.0]] * 50)
    pages = replace(guest(heat, node=1), recent=heat, counters=seen(1).counters)
    planner = HostPlanner()
    planner.plan(view(pages, now_ms=-1000, move_ns=dear))
    (plan,) = planner.plan(view(pages, now_ms=0, move_ns=dear)).pages
    moved = np.flatnonzero(plan == 0)
    assert len(moved) == 10 and (moved % 2 == 1).all()


def test_copies_are_bought_only_if_dropping_them_could_be_paid_for_too():
    budget_ns = guard.CREDIT_NS + 1000 * MS * guard.TIME_SHARE
    pages = replace(guest([[1e8, 1e8]] * 100, node=1, written=False), counters=seen(1).counters)
    pages = replace(pages, recent=pages.heat)
    for each_ns, drop_ns in ((budget_ns / 20, 0.0), (budget_ns / 40, budget_ns / 40), (0.0, budget_ns / 20)):
        planner = HostPlanner()
        for now_ms in (-1000, 0):
            # What a page costs and what dropping it costs are shared by four vCPUs.
            host = replace(view(pages, now_ms=now_ms, move_ns=4 * each_ns), collapse_ns=4 * drop_ns)
            (plan,) = planner.plan(host).pages
        assert int((plan == REPLICATED).sum()) == pytest.approx(20, abs=1)


def test_a_full_controller_is_rid_of_the_hottest_pages_first():
    """Once it is not full any more, pages that are used alike gain nothing, and may not rank by that."""
    chance = np.random.default_rng(3)
    heat = (chance.pareto(1.5, 800) + 0.1)[:, None] * (1 + 0.02 * chance.standard_normal((800, 2))) * 1e6
    pages = replace(guest(heat, parallelism=16.0), recent=heat, counters=seen(0).counters)
    host = HostView(two_nodes(controllers=(0.05, 0.05), link=10.0), np.full(2, 1e9), (pages,), 1.0)
    host = replace(host, room=Room(40.0, np.full(2, 1e9), np.full(2, 1e9)))
    planner = HostPlanner()
    planner.plan(replace(host, now_ns=-1000 * MS))
    (plan,) = planner.plan(host).pages
    total = heat.sum(axis=1)
    moved = total[plan == 1]
    # Not all of the hottest are to go: half of all stay.
    assert len(moved) == 40 and moved.sum() > 0.6 * np.sort(total)[-40:].sum()
