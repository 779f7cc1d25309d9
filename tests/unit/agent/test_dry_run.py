"""A policy run over a recording tells what it would have moved and gained."""

from pathlib import Path

from tests.unit.agent.agent_world import HOST, NPAGES, batch, guest
from vmplace.agent.dry_run import rehearse
from vmplace.policy import home
from vmplace.policy.plan import GuestSettings, Mode
from vmplace.sampling.recording import Recorder, iter_recording


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
