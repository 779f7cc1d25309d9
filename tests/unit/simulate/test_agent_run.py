"""The agent's own loop on a simulated host: what it sees, does, undoes, and that a run can be repeated."""

import errno
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.unit.simulate.small_trace import arrays_of, private_pages, shared_pages
from vmplace.agent.loop import Agent
from vmplace.agent.rehearsal import Event, rehearse
from vmplace.agent.run_recorder import recording_run
from vmplace.model.touched_pages import TouchedPages
from vmplace.policy import plan_state, policy_auto
from vmplace.policy.baselines import stock
from vmplace.policy.plan import GuestSettings, Snapshot
from vmplace.policy.planner_view import host_view
from vmplace.policy.policy_auto import AutoPolicy, Horizon
from vmplace.sampling.page_arrays import unpacked
from vmplace.sampling.recording import iter_recording
from vmplace.sampling.recording_frames import PlanFrame
from vmplace.simulate import agent_source, source_views
from vmplace.simulate.agent_host import SimulatedMachine, VirtualClock
from vmplace.simulate.agent_run import AgentHost, AgentSetup, quiet, run_agent
from vmplace.simulate.agent_source import TraceSource
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.guest_run import GuestRun, share_cpus
from vmplace.simulate.host_file import parse_host
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.run import simulate
from vmplace.simulate.simulated_guest import HVA
from vmplace.simulate.simulation import Simulation
from vmplace.simulate.source_views import CLOCK_SCALE, Sensor, source_named
from vmplace.simulate.trace import parse_trace

HOST = parse_host(
    """
    distances = [[10, 20, 20, 20], [20, 10, 20, 20], [20, 20, 10, 20], [20, 20, 20, 10]]
    bandwidth_mib_per_s = [[8000, 4000, 4000, 4000], [4000, 8000, 4000, 4000],
                           [4000, 4000, 8000, 4000], [4000, 4000, 4000, 8000]]
    node = [{nid = 0, cpus = 2, memory_mib = 64}, {nid = 2, cpus = 2, memory_mib = 64},
            {nid = 3, cpus = 2, memory_mib = 64}, {nid = 5, cpus = 2, memory_mib = 64}]
    """,
    name="four",
)
KVM = Sensor("kvm", bits=True)
LONG = 60_000
"""Accesses of a page in a window: so many that the agent sees several windows of its own."""


def spec_of(arrays: dict[str, Any], name: str = "g", **options: str):
    return guest_spec(name, parse_trace(arrays, name=name), options, HOST)


def simulation_of(*specs, policy: str = "agent:auto") -> Simulation:
    guests = [GuestRun(spec, HOST, 1 << 30) for spec in specs]
    share_cpus(guests, HOST)
    return Simulation(HOST, guests, POLICIES[policy], source_named("ad"), PlacementCosts())


def run(arrays: dict[str, Any], policy: str, source: str = "ad", **options: str):
    return simulate(HOST, [spec_of(arrays, **options)], POLICIES[policy], source_named(source))


def machine_of(simulation: Simulation, tmp_path) -> SimulatedMachine:
    return SimulatedMachine(simulation, VirtualClock(simulation, CLOCK_SCALE), tmp_path / "proc")


def test_the_agent_brings_private_pages_to_their_nodes():
    """All pages lie on node 0 at first; a quarter of them is used from there."""
    none, placed = (run(private_pages(heat=LONG), policy) for policy in ("none", "agent:auto"))
    assert none.lar == 0.25 and placed.lar > 0.8
    assert placed.run_time_s < none.run_time_s


@pytest.mark.slow
def test_pages_that_all_only_read_get_copies_and_keep_them():
    result = run(shared_pages(heat=LONG), "agent:auto")
    assert result.guests["g"].replicated_bytes > 0 and result.lar > 0.8


@pytest.mark.slow
def test_a_stock_kernel_makes_no_copies():
    arrays = shared_pages(heat=LONG, npages=100)
    stock, patched = (run(arrays, "agent:auto", source).guests["g"] for source in ("idle", "ad"))
    assert (stock.replicated_bytes, patched.replicated_bytes) == (0, 3 * 100 * 4096)


def test_the_pressure_that_the_agent_tells_is_what_the_controllers_serve():
    """By counters and page heat, against the simulator's own count of what each node served."""
    simulation = simulation_of(spec_of(private_pages(heat=LONG)), policy="agent:auto")
    reported = run_agent(simulation, AgentSetup("auto", KVM)).status.guests["g"].pressure_by_node
    served = simulation.meter.accesses.sum(axis=0) / simulation.meter.time_ns
    assert reported is not None
    # Its two CPUs got a tenth less of a controller, when that was measured, than it serves.
    assert [*reported.values()] == pytest.approx((served / HOST.system.controller).tolist(), rel=0.15)


def test_two_runs_are_the_same_to_the_last_digit():
    assert run(private_pages(heat=LONG), "agent:auto") == run(private_pages(heat=LONG), "agent:auto")


def test_plans_know_the_share_of_local_accesses_that_was_counted(monkeypatch: pytest.MonkeyPatch):
    """Each of four nodes uses a quarter of the pages, all of which are on the first one, until they move."""
    seen: list[float | None] = []

    def noting(snapshot: Snapshot, *rest: Any) -> Any:
        seen.extend(guest.lar for guest in snapshot.guests)
        return host_view(snapshot, *rest)

    monkeypatch.setattr(policy_auto, "host_view", noting)
    run(private_pages(heat=LONG, npages=64), "agent:auto", first_touch="0")
    known = [lar for lar in seen if lar is not None]
    assert known[0] == pytest.approx(0.25, abs=0.01) and known[-1] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "shortest_ms", "more"), [("auto", 250, 2), ("auto", 1000, 1), ("interleave", 250, 1)]
)
def test_the_agent_looks_more_often_where_looks_are_cheap_and_the_plan_can_use_it(policy, shortest_ms, more):
    def windows(**config: object) -> int:
        simulation = simulation_of(spec_of(private_pages(heat=LONG)), policy=f"agent:{policy}")
        config |= {"longest_rest_ms": 0}
        return run_agent(simulation, AgentSetup(policy, KVM, config=config)).status.windows

    fixed, adapted = windows(shortest_window_ms=1000), windows(shortest_window_ms=shortest_ms)
    assert adapted == fixed if more == 1 else adapted >= more * fixed


def test_watching_and_planning_cost_the_guest_time():
    """Nothing is to be moved: what is left is the price of looking."""
    records = [(w, p, 0, LONG, 0) for w in range(4) for p in range(400)]
    arrays = arrays_of(records, pages=400, threads=1, windows=4)
    none, watched = (run(arrays, policy, nodes="0") for policy in ("none", "agent:auto"))
    assert watched.guests["g"].moved_bytes == 0
    assert 1.0 < watched.run_time_s / none.run_time_s < 1.001


@pytest.mark.parametrize(
    ("look_ns", "config", "rest_ms"),
    [
        (1e3, {}, 2000),
        (1e6, {}, 4000),
        (1e7, {}, 10_000),
        (1e7, {"longest_rest_ms": 1000}, 1000),
        (1e7, {"longest_rest_ms": 3000}, 3000),
    ],
)
def test_an_agent_whose_looks_are_dear_rests_longer_unless_it_is_set_otherwise(
    tmp_path, monkeypatch, look_ns: float, config: dict[str, object], rest_ms: int
):
    monkeypatch.setattr(agent_source, "LOOK_PAGE_NS", look_ns)
    records = [(w, p, 0, LONG, 0) for w in range(4) for p in range(400)]
    arrays = arrays_of(records, pages=400, threads=1, windows=4)
    simulation = simulation_of(spec_of(arrays, nodes="0"))
    host = AgentHost(simulation, AgentSetup("auto", KVM, config=config), tmp_path)
    with quiet(), closing(host.actuator()) as actuator:
        agent = host.agent(actuator)
        agent.run(windows=15)
    assert agent.status.rest_ms == pytest.approx(rest_ms, rel=0.1)


def test_node_bits_tell_who_touched_what(tmp_path):
    simulation = simulation_of(spec_of(private_pages(heat=LONG)))
    machine = machine_of(simulation, tmp_path)
    source = TraceSource(machine, KVM, seed=1)
    (guest,) = machine.topologies()
    source.arm(guest)
    machine.clock.sleep(0.5)
    source.read_early(guest)
    machine.clock.sleep(0.5)
    batch = source.harvest(guest)
    (sample,) = batch.ranges
    assert sample.by_node is not None
    bits = np.stack([unpacked(row, 400) for row in sample.by_node.accessed])
    assert (bits[:4] == (np.arange(400) % 4 == np.arange(4)[:, None])).all() and not bits[4].any()
    assert len(sample.by_node.early) == 1 and batch.nids == (0, 2, 3, 5)
    assert (sample.node_index == 0).all()


def test_undo_puts_every_page_back(tmp_path):
    simulation = simulation_of(spec_of(private_pages(heat=LONG)))
    before = simulation.guests[0].node.copy()
    host = AgentHost(simulation, AgentSetup("auto", KVM), tmp_path)
    with quiet(), closing(host.actuator()) as actuator:
        host.agent(actuator).run(windows=8)
    assert (simulation.guests[0].node != before).sum() > 200
    with quiet(), closing(host.actuator()) as another:
        another.undo(None, lambda: False)
    assert (simulation.guests[0].node == before).all()


def test_a_full_node_refuses_as_the_kernel_does(tmp_path):
    simulation = simulation_of(spec_of(private_pages(heat=LONG)))
    machine = machine_of(simulation, tmp_path)
    (guest,) = machine.topologies()
    HOST.capacity_pages[1], kept = 10, HOST.capacity_pages[1]
    try:
        hvas = np.uint64(HVA) + np.arange(20, dtype=np.uint64) * np.uint64(4096)
        status = np.full(20, -1000, np.int32)
        with pytest.raises(OSError) as refused:
            machine.move_pages(guest.pid, hvas, np.full(20, 2, np.int32), status)
    finally:
        HOST.capacity_pages[1] = kept
    assert refused.value.errno == errno.ENOMEM
    assert (simulation.guests[0].node[:10] == 1).all() and (simulation.guests[0].node[10:] == 0).all()


def test_a_guest_that_ended_is_gone_for_the_kernel(tmp_path):
    simulation = simulation_of(spec_of(private_pages(heat=100)))
    machine = machine_of(simulation, tmp_path)
    (guest,) = machine.topologies()
    simulation.go_on(np.inf)
    assert machine.topologies() == ()
    with pytest.raises(OSError) as gone:
        machine.page_nids(guest.pid, np.array([HVA], np.uint64), np.zeros(1, np.int32))
    assert gone.value.errno == errno.ESRCH


@pytest.mark.slow
def test_on_a_stock_kernel_its_balancing_places_a_guest_that_spans_nodes():
    """The agent sees no nodes there, and leaves it at work; the control: it takes it if it is asked to."""
    arrays = private_pages(heat=LONG, windows=12)
    none, kernel, auto = (
        run(arrays, policy, source)
        for policy, source in (("none", "full"), ("kernel-balancing-model", "hints"), ("agent:auto", "idle"))
    )
    assert kernel.run_time_s < none.run_time_s
    assert auto.run_time_s < none.run_time_s - 0.8 * (none.run_time_s - kernel.run_time_s)
    simulation = simulation_of(spec_of(arrays))
    run_agent(simulation, AgentSetup("auto", Sensor("idle"), config={"numa_balancing": "take"}))
    assert simulation.guests[0].counts.moved == 0


@pytest.mark.slow
def test_the_faults_of_kernel_balancing_beside_the_agent_cost_the_guest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stock, "SLOWEST", 1.0)
    arrays = private_pages(heat=LONG, windows=12)
    usual = run(arrays, "agent:auto", "idle").run_time_s
    monkeypatch.setattr(source_views, "HINT_FAULT_NS", 1e6)
    assert run(arrays, "agent:auto", "idle").run_time_s > 1.05 * usual


def test_on_a_stock_kernel_a_guest_of_one_node_comes_home_and_its_balancing_is_taken_and_given_back(tmp_path):
    arrays = private_pages(heat=LONG, windows=12)
    simulation = simulation_of(spec_of(arrays, nodes="2", first_touch="0"))
    host = AgentHost(simulation, AgentSetup("auto", Sensor("idle")), tmp_path)
    sysctl = tmp_path / "proc/sys/kernel/numa_balancing"
    with quiet(), closing(host.actuator()) as actuator:
        agent = host.agent(actuator)
        agent.run(windows=6)
        home = simulation.guests[0].node
        assert (home == 1).all() and agent.status.moved_bytes == 4096 * len(home)
    assert sysctl.read_text().strip() == "1"


def recorded_run(tmp_path: Path) -> tuple[Agent, list[Event]]:
    """Return an agent that managed two guests in virtual time, and what was kept of its run."""
    specs = spec_of(private_pages(heat=LONG), "a"), spec_of(shared_pages(heat=LONG), "b")
    return recorded_run_of(simulation_of(*specs), tmp_path)


def recorded_run_of(simulation: Simulation, tmp_path: Path) -> tuple[Agent, list[Event]]:
    """Return an agent that managed these guests for 30 windows, and what was kept of its run."""
    trace = tmp_path / "run.vmptrace"
    host = AgentHost(simulation, AgentSetup("auto", KVM), tmp_path)
    with quiet(), closing(host.actuator()) as actuator:
        agent = host.agent(actuator)
        agent.state.parts, kept = recording_run(agent.state.parts, trace, acts=True)
        with closing(kept):
            agent.run(windows=30)
    return agent, list(iter_recording(trace))


@pytest.mark.slow
def test_a_recorded_run_repeats_its_decisions_to_the_page(tmp_path):
    """The agent in virtual time, kept as it runs; the control: one wrong rate changes decisions."""
    agent, events = recorded_run(tmp_path)
    assert agent.status.moved_bytes > 0 and agent.status.replicated_bytes > 0
    horizon = Horizon(CLOCK_SCALE, 1.0)
    result = rehearse(events, AutoPolicy(horizon), lambda _: GuestSettings())
    assert result.decisions == result.repeated >= 20
    assert sum(one.moved_bytes for one in result.guests.values()) > 0

    def slower(event: Event) -> Event:
        if not isinstance(event, PlanFrame):
            return event
        guests = tuple(msgspec.structs.replace(one, dram_per_us=1e-3) for one in event.guests)
        return msgspec.structs.replace(event, guests=guests)

    wrong = rehearse(map(slower, events), AutoPolicy(horizon), lambda _: GuestSettings())
    assert wrong.decisions == result.decisions and wrong.repeated < result.repeated


@pytest.mark.slow
def test_decisions_are_the_same_where_nothing_is_left_out_of_a_plan(tmp_path, monkeypatch):
    """What the planner remembers is found again entry by entry, though the entries are what they were."""
    left_out: list[bool] = []
    are_same = plan_state._are_same

    def counted(now: tuple[TouchedPages, ...], before: tuple[TouchedPages, ...]) -> bool:
        left_out.append(are_same(now, before))
        return left_out[-1]

    monkeypatch.setattr(plan_state, "_are_same", counted)
    _, events = recorded_run(tmp_path)
    assert sum(left_out) >= 10
    monkeypatch.setattr(plan_state, "_are_same", lambda now, before: False)
    result = rehearse(events, AutoPolicy(Horizon(CLOCK_SCALE, 1.0)), lambda _: GuestSettings())
    assert result.decisions == result.repeated >= 20


def test_samples_of_one_access_in_16_are_paid_for_but_not_under_source_full(monkeypatch):
    def paid_ns(source: str) -> float:
        charged: list[float] = []
        monkeypatch.setattr(TraceSource, "_charge", lambda _source, _guest, ns: charged.append(ns))
        run(private_pages(heat=LONG, npages=40), "agent:auto", source)
        return sum(charged)

    often, middle, rarely = (paid_ns(f"ibs:{period}") for period in (15, 16, 17))
    assert often > middle > rarely > 0
    assert paid_ns("full") < middle / 10


def test_the_agent_follows_the_operators_word_on_protected_guests(tmp_path: Path):
    arrays = private_pages(npages=16, windows=4)
    simulation = simulation_of(spec_of(arrays, "db", priority="protected"), spec_of(arrays, "batch"))
    host = AgentHost(simulation, AgentSetup("auto", KVM), tmp_path)
    with quiet(), closing(host.actuator()) as actuator:
        agent = host.agent(actuator)
        agent.run(windows=1)
    followed = {guest.name: guest.settings.protected for guest in agent.state.roster}
    assert followed == {"db": True, "batch": False}
