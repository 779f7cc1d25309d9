"""The simulator against placements whose outcome follows from the trace's declaration."""

import numpy as np
import pytest

from tests.unit.simulate.small_trace import (
    arrays_of,
    handed_over_pages,
    lent_pages,
    private_pages,
    shared_pages,
)
from vmplace.errors import VmplaceError
from vmplace.policy.baselines import carrefour
from vmplace.policy.host_view import HostPlacement
from vmplace.simulate import source_views
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.guest_run import GuestRun
from vmplace.simulate.host_file import SimulatedHost, parse_host
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.result import SimulationResult, oracle_share
from vmplace.simulate.run import simulate
from vmplace.simulate.simulation import Simulation
from vmplace.simulate.source_views import source_named
from vmplace.simulate.trace import parse_trace

FREE = PlacementCosts(move_ns=0.0, collapse_ns=0.0, flush_ns=0.0)


def square(memory_mib: int = 64, cpus: int = 4) -> SimulatedHost:
    node = f"cpus = {cpus}\nmemory_mib = {memory_mib}\n"
    nodes = "".join(f"[[node]]\nnid = {nid}\n{node}" for nid in (0, 1, 4, 5))
    distances = [[10 if i == j else 20 for j in range(4)] for i in range(4)]
    return parse_host(
        f"distances = {distances}\nbandwidth_mib_per_s = {[[1000] * 4] * 4}\n{nodes}", name="square"
    )


def run(arrays, policy: str, *, source: str = "full", host=None, costs=FREE, copies: int = 1, **options: str):
    host = host or square()
    trace = parse_trace(arrays, name="small")
    specs = [guest_spec(f"g{i}", trace, options, host) for i in range(copies)]
    return simulate(host, specs, POLICIES[policy], source_named(source), costs=costs)


def moved(result: SimulationResult) -> int:
    return sum(guest.moved_bytes + guest.replicated_bytes for guest in result.guests.values())


def test_untouched_memory_stays_where_one_thread_first_touched_it():
    result = run(private_pages(), "none")
    assert (result.lar, result.mc_imbalance, moved(result)) == (0.25, 2.0, 0)


def test_interleaving_evens_out_controllers_and_leaves_a_quarter_local():
    result = run(shared_pages(), "interleave-all")
    assert result.lar == 0.25
    assert result.mc_imbalance == pytest.approx(0.0, abs=1e-9)


def test_interleaving_over_workers_uses_no_other_node():
    result = run(shared_pages(), "interleave-workers", nodes="0+5")
    assert result.lar == 0.5
    assert run(shared_pages(), "interleave-all", nodes="0+5").lar == 0.25


@pytest.mark.parametrize("source", ["full", "ad", "ibs:50", "ad+ibs:5000", "ad+hints+ibs"])
def test_private_pages_go_to_their_nodes_soon_after_they_were_first_seen(source: str):
    result = run(private_pages(windows=6), "vmplace", source=source)
    assert 0.97 < result.lar < 1.0


@pytest.mark.slow
def test_bits_tell_who_uses_a_page_all_the_time_from_who_does_now_and_then(monkeypatch):
    result = run(lent_pages(), "vmplace", source="ad+hints")
    assert 0.95 < result.lar < 0.99
    # The control: read once a look, both nodes' bits are set alike.
    monkeypatch.setattr(source_views, "FIRST_READING_NS", np.inf)
    assert run(lent_pages(), "vmplace", source="ad+hints").lar < 0.7


def test_the_oracle_needs_no_window_to_learn():
    assert run(private_pages(), "oracle").lar == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_the_static_oracle_places_pages_once_and_pays_nothing():
    dear = PlacementCosts(move_ns=1e8)
    assert run(private_pages(), "static-oracle", costs=dear).lar == pytest.approx(1.0, abs=0.02)
    # Where each page has one user and then another, one place serves half of the accesses at best.
    once, followed = (run(handed_over_pages(), name) for name in ("static-oracle", "oracle"))
    assert once.lar is not None
    assert once.lar < 0.52
    assert followed.lar == pytest.approx(1.0, abs=0.02)
    assert followed.run_time_s < once.run_time_s < run(handed_over_pages(), "none").run_time_s


def test_pages_that_all_read_get_copies_and_written_ones_get_spread():
    assert run(shared_pages(windows=8), "vmplace").guests["g0"].replicated_bytes == 3 * 400 * 4096
    written = run(shared_pages(stores=100, windows=8), "vmplace")
    assert written.guests["g0"].replicated_bytes == 0
    # All load is on one controller (2.0) until the first look, and about none of it afterwards.
    assert 0.0 < written.mc_imbalance < 0.2


def test_a_write_collapses_copies_for_good():
    arrays = shared_pages(windows=9)
    late = (arrays["epoch"] == 5) & (arrays["thread"] == 2)
    arrays["stores"] = np.where(late, 1, arrays["stores"])
    # With one CPU per node, no node could take all vCPUs.
    guest = run(arrays, "vmplace", host=square(cpus=1)).guests["g0"]
    assert guest.collapsed_pages == 400
    assert guest.replicated_bytes == 3 * 400 * 4096


@pytest.mark.slow
@pytest.mark.parametrize(
    "arrays", [private_pages(windows=4), shared_pages(windows=4), shared_pages(windows=4, stores=100)]
)
def test_no_policy_is_faster_than_the_oracle(arrays):
    least = run(arrays, "oracle").run_time_s
    for policy in POLICIES:
        assert run(arrays, policy).run_time_s >= least * 0.997


def test_moves_cost_the_guest_time_and_are_left_out_when_they_cannot_pay():
    cheap, dear = (PlacementCosts(move_ns=cost) for cost in (5000.0, 1e8))
    free = run(private_pages(), "vmplace").run_time_s
    paid = run(private_pages(), "vmplace", costs=cheap).run_time_s
    # Four vCPUs share the price of 300 pages; that the budget lets them go later costs something, too.
    assert paid - free > 300 * 5000e-9 / 4
    assert paid < 0.8 * run(private_pages(), "none").run_time_s
    assert moved(run(private_pages(), "vmplace", costs=dear)) == 0


@pytest.mark.slow
def test_a_page_that_was_moved_must_earn_its_next_move_anew():
    records = [(w, p, w % 2, 2000, 1) for w in range(24) for p in range(100)]
    guest = run(
        arrays_of(records, pages=100, threads=2, windows=24),
        "vmplace",
        costs=PlacementCosts(move_ns=2e4),
        nodes="0+1",
    ).guests["g0"]
    # Counted from the first window on instead, 100 pages would move four times.
    assert guest.moved_bytes < 3 * 100 * 4096


def test_guests_slow_each_other_and_one_alone_is_slowed_by_nobody():
    alone, two = run(private_pages(), "none"), run(private_pages(), "none", copies=2)
    assert two.guests["g0"].run_time_s > 1.3 * alone.run_time_s


def test_a_guest_may_start_on_another_node():
    result = run(private_pages(), "none", first_touch="4", nodes="0")
    assert result.lar == 0.0


def test_a_full_node_spills_to_the_nearest_and_a_full_host_is_refused():
    spilled = run(private_pages(npages=400), "none", host=square(memory_mib=1))
    assert spilled.lar == pytest.approx(0.25, abs=0.05)
    assert spilled.mc_imbalance < 2.0
    with pytest.raises(VmplaceError, match="too little memory"):
        run(private_pages(npages=1100), "none", host=square(memory_mib=1))


def test_vcpus_that_outnumber_cpus_share_them():
    idle = private_pages(heat=1)
    roomy, crowded = (run(idle, "none", nodes="0", copies=n).run_time_s for n in (1, 4))
    assert crowded == pytest.approx(4 * roomy, rel=0.05)


def test_guests_that_float_make_room_for_one_that_is_tied():
    """Linux moves a thread to a CPU that is free, instead of letting two share one."""
    host, trace = square(), parse_trace(private_pages(), name="small")
    specs = [guest_spec(name, trace, {"vcpus": "4"}, host) for name in ("tied", "floats")]
    guests = [GuestRun(spec, host, 6) for spec in specs]
    simulation = Simulation(host, guests, POLICIES["none"], source_named("full"), FREE)
    for one in guests:
        one.run_on(np.zeros(4, np.intp))
    pages = [one.node for one in guests]
    simulation._carry_out(guests, HostPlacement(pages, [np.ones(4, np.intp), None]))
    simulation._carry_out(guests, HostPlacement(pages, [np.zeros(4, np.intp), None]))
    assert (guests[0].vcpu_node == 0).all() and not (guests[1].vcpu_node == 0).any()
    assert [one.cpu_share for one in guests] == [1.0, 1.0]


def test_the_share_of_the_oracle_is_unknown_where_nothing_can_be_gained():
    assert oracle_share(10.0, 8.0, 6.0) == 0.5
    assert oracle_share(10.0, 10.0, 10.0) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"node": "1"}, "unknown option 'node'"), ({"nodes": "2"}, "no node 2"), ({"vcpus": "0"}, "vcpus is 0")],
)
def test_a_guest_option_that_cannot_be_is_named(options: dict[str, str], message: str):
    with pytest.raises(VmplaceError, match=message):
        guest_spec("g", parse_trace(private_pages(), name="small"), options, square())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "oracle"])
def test_a_guest_that_is_done_leaves_its_cpus_to_the_others(name: str):
    host, trace = square(), parse_trace(shared_pages(windows=8), name="small")
    options = {"nodes": "0", "vcpus": "4"}
    short = parse_trace(shared_pages(windows=2), name="short")
    long, brief = guest_spec("long", trace, options, host), guest_spec("brief", short, options, host)
    policy, source = POLICIES[name], source_named("full")
    alone = simulate(host, [long], policy, source, costs=FREE).run_time_s
    beside = simulate(host, [long, brief], policy, source, costs=FREE).guests
    # Both have half of the CPUs until the brief one is done.
    assert beside["long"].run_time_s == pytest.approx(alone + beside["brief"].run_time_s / 2, rel=0.05)


def test_who_watches_and_changes_nothing_makes_a_guest_slower_by_the_watching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing can be gained: all pages lie where they are used."""
    cheap = run(private_pages(), "kernel-balancing-model", source="hints", nodes="0", first_touch="0")
    monkeypatch.setattr(source_views, "HINT_FAULT_NS", 150_000.0)
    dear = run(private_pages(), "kernel-balancing-model", source="hints", nodes="0", first_touch="0")
    assert moved(cheap) == moved(dear) == 0
    untouched = run(private_pages(), "none", nodes="0", first_touch="0").run_time_s
    assert untouched < cheap.run_time_s < dear.run_time_s


def test_carrefour_pays_for_samples_only_while_its_gates_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the paper takes a quarter of them while nothing is to be done (section 3.3.1)."""
    untouched = run(shared_pages(), "none").run_time_s
    monkeypatch.setattr(carrefour, "MIN_MAPTU", 1e9)
    assert run(shared_pages(), "carrefour-2013", source="ibs-hits").run_time_s == pytest.approx(untouched)
    monkeypatch.setattr(carrefour, "MIN_MAPTU", 0.0)
    monkeypatch.setattr(carrefour, "MAX_IPC", 1e9)
    monkeypatch.setattr(carrefour, "MIN_SAMPLES", 1e9)
    idle = run(shared_pages(), "carrefour-2013", source="ibs-hits").run_time_s - untouched
    monkeypatch.setattr(carrefour, "LOW_RATE", 1.0)
    always = run(shared_pages(), "carrefour-2013", source="ibs-hits").run_time_s - untouched
    assert always > 0 and idle == pytest.approx(always / 4, rel=0.2)
