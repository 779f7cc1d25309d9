"""What a plan expects of itself, and of what it does not do."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.policy.test_policy_auto import after, busy
from tests.unit.policy.views import bits, guest_view, host, moved
from vmplace.model.described_memory import described_memory
from vmplace.model.memory_system import solved
from vmplace.model.published import square
from vmplace.policy.forecast import CUT, JOINT, NOTHING, UNCOUNTED, UNSEEN, weighings
from vmplace.policy.host_view import (
    ABSENT,
    REPLICATED,
    GuestEvidence,
    HostPlacement,
    HostView,
    NodeIndexes,
    demand,
    traffic,
)
from vmplace.policy.options import Option, Weighing
from vmplace.policy.plan import GuestSettings, Mode, PlacementPlan, Snapshot
from vmplace.policy.policy_auto import BY_VCPUS, AutoPolicy
from vmplace.topology.guest import PAGE_BYTES

DISTANCES, MIB_PER_S = np.array([[10.0, 20.0], [20.0, 10.0]]), np.array([[2e3, 1e3], [1e3, 2e3]])
SYSTEM = described_memory((0, 1), DISTANCES, MIB_PER_S, np.ones(2))
PAGES, HEAT = 100, 1000.0
MOVE_NS, FLUSH_NS = 2000.0, 5000.0 / 512


def evidence(name: str = "db", *, written: bool = True, user: int = 1) -> GuestEvidence:
    """Return a guest on both nodes whose pages lie on node 0, and are used from node ``user``."""
    heat = np.zeros((PAGES, 2))
    heat[:, user] = HEAT
    return GuestEvidence(
        name=name, heat=heat, written=np.full(PAGES, written), node=np.zeros(PAGES, np.int8),
        worker=np.ones(2, bool), windows=np.ones(PAGES, np.int64), read_ratio=None, parallelism=2.0,
        think_ns=50.0, mlp=2.5,
    )  # fmt: skip


def weighed(
    guests: tuple[GuestEvidence, ...],
    places: list[NodeIndexes],
    wanted: list[NodeIndexes] | None = None,
    ahead_s: float | None = 1.0,
) -> tuple[Weighing, ...]:
    view = HostView(SYSTEM, np.full(2, 1e9), guests, MOVE_NS, FLUSH_NS)
    now = [traffic(one.heat, one.node) for one in guests]
    return weighings(view, now, HostPlacement(places, wanted=wanted), 1.0, [ahead_s] * len(guests))


def moving(pages: int, node: int = 1) -> NodeIndexes:
    """Return places with so many pages on another node."""
    return np.where(np.arange(PAGES) < pages, node, 0).astype(np.int8)


def option(weighing: Weighing, way: str) -> Option:
    (found,) = (one for one in (weighing.chosen, *weighing.others) if one is not None and one.way == way)
    return found


def time_between_accesses(guest: GuestEvidence, places: NodeIndexes) -> float:
    """Return that of a guest that is alone, with its pages at ``places``."""
    return float(1 / solved(SYSTEM, demand((guest,), [traffic(guest.heat, places)])).rates[0])


@pytest.mark.parametrize(("which", "as_pages"), [(0, 1 + 0.2 * 511), (1, 512.0)])
def test_the_price_is_that_of_the_pages_that_move(which: int, as_pages: float) -> None:
    """A huge page is unmapped once and copied in full, at a fifth of a small page's price each."""
    guest, places = evidence(), np.zeros(2, np.int8)
    guest = replace(
        guest, heat=guest.heat[:2], written=guest.written[:2], node=places, windows=guest.windows[:2],
        sizes=np.full(2, 512.0), huge=np.array([True, False]),
    )  # fmt: skip
    there = np.where(np.arange(2) == which, 1, 0).astype(np.int8)
    chosen = weighed((guest,), [there])[0].chosen
    assert chosen is not None
    assert chosen.price_ns == pytest.approx(as_pages * MOVE_NS / 2 + 512 * FLUSH_NS)


def test_what_a_plan_saves_and_costs_is_what_the_model_says_of_it() -> None:
    before, after_it = (time_between_accesses(evidence(), there) for there in (moving(0), moving(PAGES)))
    chosen = weighed((evidence(),), [moving(PAGES)])[0].chosen
    assert chosen is not None and (chosen.way, chosen.why_not) == ("planned", "")
    assert chosen.saved_ns == pytest.approx(PAGES * HEAT * (before - after_it))
    assert chosen.saved_share is not None and chosen.saved_share > 0.05
    assert chosen.saved_share == pytest.approx(1 - after_it / before)
    assert chosen.moved_bytes == PAGES * PAGE_BYTES
    assert chosen.price_ns == pytest.approx(PAGES * (MOVE_NS / 2 + FLUSH_NS))


def test_to_stay_saves_nothing_and_has_no_price() -> None:
    stay = option(weighed((evidence(),), [moving(PAGES)])[0], "stay")
    assert (stay.saved_ns, stay.price_ns, stay.moved_bytes, stay.why_not) == (0.0, 0.0, 0, NOTHING)


def test_a_guest_is_judged_beside_where_the_plan_puts_the_others() -> None:
    """It comes to node 1, whose memory the other one leaves, or does not."""
    guests = (evidence(), replace(evidence("other", user=0), node=np.ones(PAGES, np.int8)))
    crowded, free = (
        weighed(guests, [moving(PAGES), there])[0].chosen for there in (guests[1].node, moving(0))
    )
    assert crowded is not None and free is not None and free.saved_ns > crowded.saved_ns


def test_another_way_is_judged_as_if_it_were_planned() -> None:
    """All of it to node 1, half of which is planned."""
    half, whole = (weighed((evidence(),), [moving(pages)])[0] for pages in (PAGES // 2, PAGES))
    other = option(half, "one node")
    assert other.nid == 1 and whole.chosen is not None
    assert other.saved_ns == pytest.approx(whole.chosen.saved_ns)
    assert other.price_ns == pytest.approx(whole.chosen.price_ns)
    assert other.moved_bytes == whole.chosen.moved_bytes
    assert other.why_not == JOINT


def test_copies_are_weighed_of_pages_that_nobody_writes() -> None:
    assert all(one.way != "copies" for one in weighed((evidence(),), [moving(0)])[0].others)
    read = evidence(written=False)
    planned = weighed((read,), [np.full(PAGES, REPLICATED, np.int8)])[0].chosen
    other = option(weighed((read,), [moving(0)])[0], "copies")
    assert planned is not None
    assert other.copied_bytes == planned.copied_bytes == PAGES * PAGE_BYTES
    assert other.saved_ns == pytest.approx(planned.saved_ns) and other.saved_ns > 0


def test_what_was_cut_is_among_the_others_with_what_it_would_save() -> None:
    (one,) = weighed((evidence(),), [moving(0)], [moving(PAGES)])
    assert one.chosen is not None and one.chosen.way == "stay"
    wanted = option(one, "all wanted")
    assert wanted.why_not == CUT and wanted.saved_ns > 0 and wanted.moved_bytes == PAGES * PAGE_BYTES


def test_of_a_guest_whose_accesses_nothing_counts_no_share_of_its_time_is_known() -> None:
    (one,) = weighed((evidence(),), [moving(PAGES)], ahead_s=None)
    assert one.chosen is not None and one.chosen.saved_share is None and one.chosen.saved_ns > 0
    assert one.unknown == UNCOUNTED


def test_of_a_guest_that_touched_nothing_nothing_is_known() -> None:
    idle = replace(evidence(), heat=np.zeros((PAGES, 2)))
    assert weighed((idle,), [moving(0)]) == (Weighing("db", unknown=UNSEEN),)


def weighing_of(plan: PlacementPlan) -> Weighing:
    (one,) = plan.weighings
    return one


def test_the_agents_plan_has_real_figures() -> None:
    window = bits({2: range(200, 300), 0: range(100)}, range(200, 300))
    plan = after(busy(*[window] * 4))
    assert moved(plan) == {2: set(range(200, 300))}
    chosen = weighing_of(plan).chosen
    assert chosen is not None and chosen.moved_bytes == 100 * PAGE_BYTES
    assert chosen.price_ns == pytest.approx(100 * (MOVE_NS / 4 + FLUSH_NS))
    assert chosen.saved_share is not None and 0 < chosen.saved_share < 1
    assert chosen.saved_ns > chosen.price_ns


def test_where_vcpus_alone_tell_the_plan_says_that_it_has_no_figures() -> None:
    one = weighing_of(after(guest_view([2, 3], 0)))
    assert one.chosen is None and one.unknown == BY_VCPUS


def test_a_guest_that_is_left_alone_is_not_weighed() -> None:
    manual = guest_view([2, 3], 0, settings=GuestSettings(mode=Mode.MANUAL))
    assert AutoPolicy()(Snapshot(host(), (manual,))).weighings == ()


@pytest.mark.parametrize("seed", range(60))
def test_every_figure_is_a_number_whatever_was_seen(seed: int) -> None:
    """An explanation must not cost the plan, nor be one that JSON cannot hold."""
    chance = np.random.default_rng(seed)
    pages, count = int(chance.integers(1, 200)), int(chance.integers(1, 4))
    controller = float(chance.choice([1e-6, 1e-3, 0.04]))
    system = square(local=100.0, hop=50.0, controller=controller, link=0.03, queue=1.0)
    guests, plans = [], []
    for number in range(count):
        busy_now = float(chance.choice([0.0, 1e-9, 1.0, 1e9]))
        heat = chance.random((pages, 4)) * busy_now * (chance.random((pages, 4)) < chance.random())
        node = chance.integers(-2, 4, pages).astype(np.int8)
        worker = chance.random(4) < 0.7
        work = float(chance.choice([0.01, 4.0])), float(chance.choice([0.0, 9.0])), 2.0
        written = chance.random(pages) < 0.3
        windows = np.ones(pages, np.int64)
        guests.append(GuestEvidence(f"g{number}", heat, written, node, worker, windows, None, *work))
        plans.append(np.where((node != ABSENT) & (chance.random(pages) < 0.3), chance.integers(0, 4), node))
    view = HostView(system, np.full(4, 1e5), tuple(guests), 2000.0, cpus=np.full(4, 8.0))
    now = [traffic(one.heat, one.node) for one in guests]
    found = weighings(view, now, HostPlacement([one.astype(np.int8) for one in plans]), 1.0, [None] * count)
    options = [one for w in found for one in (*filter(None, [w.chosen]), *w.others)]
    assert len(found) == count
    assert all(np.isfinite([one.price_ns, one.saved_ns]).all() for one in options)
