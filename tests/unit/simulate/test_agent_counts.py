"""Counters of pinned vCPUs tell the agent which nodes access a guest's memory, in a simulation, too."""

from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.unit.simulate.small_trace import arrays_of
from tests.unit.simulate.test_agent_run import HOST, spec_of
from vmplace.agent.rehearsal import Event, rehearse
from vmplace.agent.run_recorder import recording_run
from vmplace.policy.plan import GuestSettings
from vmplace.policy.policy_auto import AutoPolicy, Horizon
from vmplace.sampling.recording import iter_recording
from vmplace.sampling.recording_frames import PlanFrame
from vmplace.simulate.agent_run import AgentHost, AgentSetup, quiet
from vmplace.simulate.guest_run import GuestRun
from vmplace.simulate.placement_costs import PlacementCosts
from vmplace.simulate.registry import POLICIES
from vmplace.simulate.scheduler import started
from vmplace.simulate.simulation import Simulation
from vmplace.simulate.source_views import CLOCK_SCALE, Sensor, source_named

WINDOWS, PAGES = 12, 200
IBS = Sensor("ibs", period=20_000)


def recorded(folder: Path, **options: str) -> list[Event]:
    """Return the run of a guest with two threads that write the same pages, the second twice as often."""
    records = [
        (w, p, t, 20_000 * (1 + 2 * t), 20_000) for w in range(WINDOWS) for p in range(PAGES) for t in (0, 1)
    ]
    arrays = arrays_of(records, pages=PAGES, threads=2, windows=WINDOWS)
    arrays["totals_raw_loads"] = np.full((WINDOWS, 2), 10**8, np.uint64)
    guests = [GuestRun(spec_of(arrays, "a", **options), HOST, WINDOWS)]
    started(guests, HOST)
    simulation = Simulation(HOST, guests, POLICIES["agent:auto"], source_named("full"), PlacementCosts())
    host, trace = AgentHost(simulation, AgentSetup("auto", IBS), folder), folder / "run.vmptrace"
    with quiet(), closing(host.actuator()) as actuator:
        agent = host.agent(actuator)
        agent.state.parts, kept = recording_run(agent.state.parts, trace, acts=True)
        with closing(kept):
            agent.run(windows=12)
    return list(iter_recording(trace))


def shares_of(events: list[Event]) -> list[object]:
    plans = [event for event in events if isinstance(event, PlanFrame)]
    return [guest.node_shares for plan in plans for guest in plan.guests]


def test_of_vcpus_that_are_pinned_to_nodes_counters_tell_who_accesses_how_much(tmp_path: Path) -> None:
    events = recorded(tmp_path, nodes="0+3")
    known = [one for one in shares_of(events) if one is not None]
    assert len(known) > 5
    for shares in known:
        assert isinstance(shares, tuple)
        for some in shares:
            # Node 3 is the host's third; its thread accesses them twice as often.
            assert some == pytest.approx((1 / 3, 0.0, 2 / 3, 0.0))


def test_of_vcpus_that_float_they_tell_nothing(tmp_path: Path) -> None:
    assert set(shares_of(recorded(tmp_path))) == {None}


def test_a_replay_decides_by_what_was_counted(tmp_path: Path) -> None:
    events = recorded(tmp_path, nodes="0+3")

    def replayed(events: list[Event]) -> tuple[int, int]:
        result = rehearse(events, AutoPolicy(Horizon(CLOCK_SCALE, 1.0)), lambda _: GuestSettings())
        return result.repeated, result.decisions

    def uncounted(event: Event) -> Event:
        if not isinstance(event, PlanFrame):
            return event
        guests = tuple(msgspec.structs.replace(one, node_shares=None) for one in event.guests)
        return msgspec.structs.replace(event, guests=guests)

    repeated, decisions = replayed(events)
    assert repeated == decisions > 5
    # The control: without the shares some decisions are others.
    assert replayed([uncounted(event) for event in events])[0] < decisions
