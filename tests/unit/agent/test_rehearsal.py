"""A policy run over a recording tells what it would have moved and gained."""

from pathlib import Path

import numpy as np

from tests.unit.agent.agent_world import HOST, NPAGES, World, batch, guest
from vmplace.agent.config import GuestRule, LoadedConfig
from vmplace.agent.config_sections import Config
from vmplace.agent.rehearsal import rehearse
from vmplace.agent.rehearsed_guest import GuestReplay
from vmplace.agent.run_recorder import recording_run
from vmplace.policy import home
from vmplace.policy.plan import GuestSettings, Mode, Move, NodeShares, PlacementPlan, Snapshot
from vmplace.sampling.recording import Recorder, iter_recording
from vmplace.sampling.recording_frames import PlannedGuest


def recording(path: Path, windows: int) -> Path:
    with Recorder(path, HOST) as recorder:
        for _ in range(windows):
            for one in (guest("remote"), guest("local", cpu=0)):
                recorder.add(one, batch(one, nid=0))
    return path


def test_a_remote_guest_would_have_been_moved_home(tmp_path: Path):
    events = iter_recording(recording(tmp_path / "trace", 3))
    result = rehearse(events, home.plan, lambda _: GuestSettings())
    assert result.windows == 3
    assert result.moved_bytes == result.guests["remote"].moved_bytes == NPAGES * 4096
    assert (result.guests["remote"].lar_before, result.guests["remote"].lar_after) == (0.0, 1.0)
    assert result.guests["remote"].moved_bytes_by_nid == {1: NPAGES * 4096}
    # Home reckons no latency: its moves have words instead.
    assert result.guests["remote"].saved_ns is None
    assert result.guests["remote"].other_reasons == result.guests["remote"].reasons != ()
    assert (result.guests["local"].lar_before, result.guests["local"].lar_after) == (1.0, 1.0)
    assert result.mc_imbalance_before is not None and result.mc_imbalance_before > 1.4
    assert result.mc_imbalance_after == 0.0


def test_a_manual_guest_would_have_been_left_alone(tmp_path: Path):
    events = iter_recording(recording(tmp_path / "trace", 2))
    result = rehearse(events, home.plan, lambda _: GuestSettings(Mode.MANUAL))
    assert result.moved_bytes == 0
    assert result.guests["remote"].lar_after == 0.0


def by_age(snapshot: Snapshot) -> PlacementPlan:
    """Move as many pages of each guest as windows are known of it."""
    moves = []
    for view in (one for one in snapshot.guests if one.pages):
        count, ram = view.pages.windows if view.pages else 0, view.topology.ram[0]
        hva = np.uint64(ram.hva) + np.arange(count, dtype=np.uint64) * np.uint64(4096)
        nid = np.zeros(count, np.int16)
        moves.append(Move(view.topology.name, hva, np.ones(count, np.uint16), nid, nid + np.int16(1), "age"))
    return PlacementPlan(tuple(moves))


def test_a_guest_that_was_manual_for_a_while_is_repeated_as_one_that_is_learnt_anew(tmp_path: Path):
    """The agent itself, kept as it runs: it lets go of what it knows of a guest that goes manual."""
    agent = World([guest("db1"), guest("web")], policy=by_age).agent()
    agent.state.parts, kept = recording_run(agent.state.parts, tmp_path / "run", acts=True)
    for mode in (Mode.AUTO, Mode.MANUAL, Mode.AUTO):
        rules = (GuestRule("db1", GuestSettings(mode)),)
        agent.roster.reload(LoadedConfig(Config(), rules), HOST.nids)
        agent.run(windows=agent.status.windows + 3)
    kept.close()
    result = rehearse(iter_recording(tmp_path / "run"), by_age, lambda _: GuestSettings())
    assert result.decisions == result.repeated == 9
    # Three windows, none, and three that begin anew; nine windows in one go.
    windows = {"db1": (1 + 2 + 3) * 2, "web": sum(range(1, 10))}
    assert {name: one.moved_bytes // 4096 for name, one in result.guests.items()} == windows


def test_another_policy_knows_whose_accesses_were_counted():
    planned = PlannedGuest("db1", {}, node_shares=((0.25, 0.75), None))
    view = GuestReplay(guest("db1")).view(GuestSettings(), planned)
    assert view.node_shares == NodeShares((0.25, 0.75), None)
