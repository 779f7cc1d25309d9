"""The agent gathers floating vCPUs on a node that has cores for them, and gives back what it took."""

from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.unit.simulate.small_trace import arrays_of
from tests.unit.simulate.test_agent_run import HOST, KVM, recorded_run_of, spec_of
from vmplace.agent import act_stage
from vmplace.agent.rehearsal import Event, rehearse
from vmplace.errors import GuestGoneError
from vmplace.policy.plan import GuestSettings
from vmplace.policy.policy_auto import AutoPolicy, Horizon
from vmplace.sampling.recording_frames import PlanFrame
from vmplace.simulate.agent_run import AgentHost, AgentSetup, SimulatedCost, quiet
from vmplace.simulate.guest_run import GuestRun
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.scheduler import next_nodes, started
from vmplace.simulate.simulation import Simulation
from vmplace.simulate.source_views import CLOCK_SCALE, Sensor, sensor_of, source_named
from vmplace.topology.guest import GuestTopology

EVERY = set(range(8))
WINDOWS = 12


def pairs(names: str = "ab", policy: str = "agent:auto", **options: str) -> Simulation:
    """Return guests of two threads each that write the same pages, and begin on two nodes."""
    records = [(w, p, t, 30_000, 30_000) for w in range(WINDOWS) for p in range(200) for t in range(2)]
    arrays = arrays_of(records, pages=200, threads=2, windows=WINDOWS)
    arrays["totals_raw_loads"] = np.full((WINDOWS, 2), 10**8, np.uint64)
    guests = [GuestRun(spec_of(arrays, name, **options), HOST, WINDOWS) for name in names]
    started(guests, HOST)
    return Simulation(HOST, guests, POLICIES[policy], source_named("full"), PlacementCosts())


def managed(simulation: Simulation, folder: Path, seconds: float, sensor: Sensor = KVM) -> AgentHost:
    """Return the host after an agent managed it for so many windows."""
    host = AgentHost(simulation, AgentSetup("auto", sensor), folder)
    with quiet(), closing(host.actuator()) as actuator:
        agent = host.agent(actuator)
        agent.run(windows=int(seconds))
    return host


def cpus_of(host: AgentHost) -> dict[str, list[set[int]]]:
    """Return where each guest's threads may run."""
    cpus = host.machine.threads.cpus
    return {name: [set(cpus[tid]) for tid in one.tids] for name, one in host.machine.guests.items()}


def are_tied(host: AgentHost) -> bool:
    return all(len(cpus) == 2 for guest in cpus_of(host).values() for cpus in guest)


def test_guests_that_float_are_gathered_each_on_a_node_of_its_own_and_memory_follows(tmp_path):
    simulation = pairs()
    assert all(len(set(guest.vcpu_node.tolist())) == 2 for guest in simulation.guests)
    assert are_tied(managed(simulation, tmp_path, 20))
    nodes = [set(guest.vcpu_node.tolist()) for guest in simulation.guests]
    assert all(len(one) == 1 for one in nodes) and nodes[0] != nodes[1]
    assert all((guest.node == guest.vcpu_node[0]).mean() > 0.9 for guest in simulation.guests)


def test_the_simulators_own_planner_gathers_them_too():
    """The same layouts without the agent's ways, in which counters are exact."""
    simulation = pairs(policy="vmplace")
    simulation.go_on(1e9)
    nodes = [set(guest.vcpu_node.tolist()) for guest in simulation.guests]
    assert all(len(one) == 1 for one in nodes) and nodes[0] != nodes[1]


@pytest.mark.parametrize("options", [{"nodes": "0+3"}, {"priority": "protected"}])
def test_vcpus_that_are_pinned_or_protected_stay(tmp_path, options: dict[str, str]):
    simulation = pairs(**options)
    before = [guest.vcpu_node.tolist() for guest in simulation.guests]
    managed(simulation, tmp_path, 20)
    assert [guest.vcpu_node.tolist() for guest in simulation.guests] == before


def test_undo_gives_gathered_vcpus_the_cpus_that_they_had(tmp_path):
    host = managed(pairs(), tmp_path, 20)
    assert are_tied(host)
    with quiet(), closing(host.actuator()) as another:
        # The next agent finds in the journal what this one tied.
        before = {cpus for one in another.ties().values() for cpus in one.before.values()}
        assert len(another.ties()) == 2 and before == {tuple(sorted(EVERY))}
        another.undo(None, lambda: False)
        assert not another.ties()
    assert cpus_of(host) == {name: [EVERY, EVERY] for name in "ab"}


def test_vcpus_get_their_cpus_back_if_an_instruction_takes_longer_then(tmp_path, monkeypatch):
    """It takes guest b 60 % longer once it is tied, as if it missed its caches; guest a none."""
    seen, honest = [], SimulatedCost.cost

    def cost(self: SimulatedCost, guest: GuestTopology) -> float | None:
        seen.append(guest.name == "b" and all(len(vcpu.cpus) == 2 for vcpu in guest.vcpus))
        known = honest(self, guest)
        return known and known * (1.6 if seen[-1] else 1.0)

    monkeypatch.setattr(SimulatedCost, "cost", cost)
    host = managed(pairs(), tmp_path, 60)
    assert any(seen) and not seen[-1]
    assert cpus_of(host)["b"] == [EVERY, EVERY] and all(len(cpus) == 2 for cpus in cpus_of(host)["a"])


@pytest.mark.parametrize("sensor", [KVM, sensor_of(source_named("ibs"))])
def test_memory_follows_at_once_whatever_else_is_measured(tmp_path: Path, sensor: Sensor) -> None:
    """Where samples alone tell of pages, a guest on one node is else measured for long before it may move."""
    host = managed(pairs(), tmp_path, 24, sensor)
    tied = {name: cpus[0] for name, cpus in cpus_of(host).items() if cpus[0] != EVERY}
    assert tied
    for name, cpus in tied.items():
        assert (host.machine.guests[name].nodes() == min(cpus) // 2).mean() > 0.9


@pytest.mark.slow
def test_a_recorded_run_repeats_what_it_gathered(tmp_path):
    """The control: a recording of a version that gathered nobody is replayed as that version decided."""
    _, events = recorded_run_of(pairs(), tmp_path)
    result = rehearse(events, AutoPolicy(Horizon(CLOCK_SCALE, 1.0)), lambda _: GuestSettings())
    assert result.decisions == result.repeated >= 20

    def older(event: Event) -> Event:
        if not isinstance(event, PlanFrame):
            return event
        guests = tuple(
            msgspec.structs.replace(
                one, settings={key: value for key, value in one.settings.items() if key != "gathers"}
            )
            for one in event.guests
        )
        return msgspec.structs.replace(event, guests=guests)

    old = rehearse(map(older, events), AutoPolicy(Horizon(CLOCK_SCALE, 1.0)), lambda _: GuestSettings())
    assert old.repeated < result.repeated


def test_threads_stay_where_a_cpu_is_left_and_go_where_most_are():
    cpus, every = np.array([2.0, 2.0, 0.0]), [0, 1]
    assert next_nodes([(0, every), (0, every), (1, every)], cpus) == [0, 0, 1]
    # A thread that has one node comes first, whoever was there.
    assert next_nodes([(0, every), (0, every), (1, [0])], cpus) == [0, 1, 0]
    # Where no CPU is left, nobody moves for nothing.
    assert next_nodes([(0, every)] * 2 + [(1, every)] * 3, cpus) == [0, 0, 1, 1, 1]


def test_a_thread_of_a_guest_that_ended_is_gone(tmp_path):
    host = AgentHost(pairs("a"), AgentSetup("auto", KVM), tmp_path)
    host.simulation.go_on(np.inf)
    with pytest.raises(GuestGoneError):
        host.machine.threads.set_cpus(host.machine.guests["a"].tids[0], {0})


def test_vcpus_are_given_back_though_a_trial_lets_nothing_else_move(tmp_path, monkeypatch):
    simulation, honest = pairs(), SimulatedCost.cost
    is_tied: list[bool] = [False]

    def cost(self: SimulatedCost, guest: GuestTopology) -> float | None:
        is_tied[0] |= guest.name == "b" and all(len(vcpu.cpus) == 2 for vcpu in guest.vcpus)
        known = honest(self, guest)
        return known and known * (1.6 if is_tied[0] and guest.name == "b" else 1.0)

    monkeypatch.setattr(SimulatedCost, "cost", cost)
    monkeypatch.setattr(act_stage, "may_move", lambda *_: not is_tied[0])
    host = managed(simulation, tmp_path, 80)
    assert is_tied[0] and cpus_of(host)["b"] == [EVERY, EVERY]


def test_vcpus_of_guests_that_are_held_are_not_asked_for(tmp_path):
    host = AgentHost(pairs(), AgentSetup("auto", KVM), tmp_path)
    with quiet(), closing(host.actuator()) as actuator:
        agent = host.agent(actuator)
        agent.run(windows=2)
        for guest in agent.state.roster:
            guest.held = True
        agent.run(windows=22)
        policy = agent.state.parts.policy
    assert isinstance(policy, AutoPolicy) and not policy.state.gathering.ties


def test_vcpus_that_crowd_a_node_go_to_the_cpus_of_a_guest_that_ended():
    simulation = pairs("abcde")
    count = np.bincount(np.concatenate([g.vcpu_node for g in simulation.guests]), minlength=4)
    # One that leaves the others as crowded as they are.
    min(simulation.guests, key=lambda guest: count[guest.vcpu_node].sum()).windows = 1
    crowds = [count.max()]
    while len(simulation.active) == 5:
        simulation.go_on(simulation.now + 1e7)
    crowds.append(np.bincount(np.concatenate([g.vcpu_node for g in simulation.active]), minlength=4).max())
    assert crowds == [3, 2]
