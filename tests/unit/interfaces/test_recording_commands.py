"""`vmplace replay` tells what would have been moved, or what is wrong with the file."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.agent.agent_world import HOST, NPAGES, batch, guest
from vmplace.errors import RecordingError
from vmplace.interfaces.exit_codes import EXIT_NOTHING
from vmplace.interfaces.options import NothingError
from vmplace.interfaces.recording_commands import replay
from vmplace.sampling.recording import Recorder


def recorded(path: Path, windows: int) -> Path:
    with Recorder(path, HOST) as recorder:
        for _ in range(windows):
            recorder.add(guest("db1"), batch(guest("db1")))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(replay, [str(argument) for argument in arguments])


def test_a_recording_is_replayed_without_guests_or_root(tmp_path: Path):
    told = json.loads(run(recorded(tmp_path / "trace", 2), "--json").stdout)
    assert told["guests"]["db1"]["moved_bytes"] == told["moved_bytes"] == NPAGES * 4096
    assert (told["guests"]["db1"]["lar_before"], told["guests"]["db1"]["lar_after"]) == (0.0, 1.0)
    assert "db1" in run(tmp_path / "trace").stdout


def test_a_damaged_recording_is_refused_unless_what_is_good_will_do(tmp_path: Path):
    trace = recorded(tmp_path / "trace", 3)
    trace.write_bytes(trace.read_bytes()[:-3])
    refused = run(trace)
    assert isinstance(refused.exception, RecordingError) and "offset" in str(refused.exception)
    assert json.loads(run(trace, "--tolerant", "--json").stdout)["windows"] == 2


def test_a_recording_without_windows_is_nothing(tmp_path: Path):
    empty = run(recorded(tmp_path / "trace", 0))
    assert isinstance(empty.exception, NothingError) and empty.exception.exit_code == EXIT_NOTHING


@pytest.mark.parametrize("policy", ["moon", ""])
def test_an_unknown_policy_is_wrong_usage(tmp_path: Path, policy: str):
    assert run(recorded(tmp_path / "trace", 1), "--policy", policy).exit_code == 2
