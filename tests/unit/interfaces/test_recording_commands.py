"""`vmplace replay` tells what would have been moved, or what is wrong with the file."""

import json
import lzma
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from tests.unit.agent.agent_world import HOST, NPAGES, ClockOfFreeDecisions, World, batch, guest
from tests.unit.interfaces.test_json_schemas import errors
from vmplace.agent.parts import Parts
from vmplace.errors import RecordingError, VmplaceError
from vmplace.interfaces.demo_command import RECORDING, demo
from vmplace.interfaces.exit_codes import EXIT_NOTHING
from vmplace.interfaces.options import NothingError
from vmplace.interfaces.recording_commands import record, replay
from vmplace.policy.registry import begun
from vmplace.sampling.recording import Recorder, iter_recording
from vmplace.sampling.recording_frames import PlanFrame, RunFrame
from vmplace.sampling.sample import SampleBatch
from vmplace.topology.guest import GuestTopology


def recorded(path: Path, windows: int) -> Path:
    with Recorder(path, HOST) as recorder:
        for _ in range(windows):
            recorder.add(guest("db1"), batch(guest("db1")))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(replay, [str(argument) for argument in arguments])


def test_a_recording_is_replayed_without_guests_or_root(tmp_path: Path):
    reported = json.loads(run(recorded(tmp_path / "trace", 2), "--json").stdout)
    assert errors("replay", reported) == [] and reported["policy"] == "auto"
    assert reported["guests"]["db1"]["moved_bytes"] == reported["moved_bytes"] == NPAGES * 4096
    assert (reported["guests"]["db1"]["lar_before"], reported["guests"]["db1"]["lar_after"]) == (0.0, 1.0)
    assert "db1" in run(tmp_path / "trace").stdout


def test_a_damaged_recording_is_refused_unless_what_is_good_will_do(tmp_path: Path):
    trace = recorded(tmp_path / "trace", 3)
    trace.write_bytes(trace.read_bytes()[:-3])
    refused = run(trace)
    assert isinstance(refused.exception, RecordingError) and "offset" in str(refused.exception)
    good = run(trace, "--tolerant", "--json")
    assert json.loads(good.stdout)["windows"] == 2
    assert "offset" in good.stderr and "the rest is left out" in good.stderr


def test_the_demo_is_what_a_replay_with_default_settings_shows(tmp_path: Path):
    pytest.importorskip("matplotlib")
    demo_of = ["--json", "--no-open", "--out", str(tmp_path / "demo.html")]
    shown = json.loads(CliRunner().invoke(demo, demo_of).stdout)
    with resources.as_file(resources.files("vmplace.interfaces") / RECORDING) as path:
        replayed = json.loads(run(path, "--json", "--config", "/dev/null").stdout)
    del shown["report"]
    assert shown == replayed


def test_a_demo_without_what_its_report_needs_prints_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = CliRunner().invoke(demo, ["--no-open", "--out", str(tmp_path / "demo.html")])
    assert isinstance(shown.exception, VmplaceError) and "matplotlib" in str(shown.exception)
    assert "web0" in shown.stdout and not (tmp_path / "demo.html").exists()


def test_a_recording_without_windows_is_nothing(tmp_path: Path):
    empty = run(recorded(tmp_path / "trace", 0))
    assert isinstance(empty.exception, NothingError) and empty.exception.exit_code == EXIT_NOTHING


@pytest.mark.parametrize("policy", ["moon", ""])
def test_an_unknown_policy_is_wrong_usage(tmp_path: Path, policy: str):
    assert run(recorded(tmp_path / "trace", 1), "--policy", policy).exit_code == 2


PERF = Path(__file__).parents[2] / "data/perf"


@pytest.fixture
def perf_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a perf.data, and put a perf before others that prints of it what the real one did."""
    tool = tmp_path / "bin/perf"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\ncase "$*" in *--header-only*) what=header;; *) what=samples;; esac\n'
        f"exec cat {PERF}/two-vcpus.$what.txt\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    (tmp_path / "perf.data").write_bytes(lzma.decompress((PERF / "two-vcpus.perf.data.xz").read_bytes()))
    return tmp_path / "perf.data"


def test_a_file_of_perf_is_run(perf_data: Path):
    reported = json.loads(run(perf_data, "--json").stdout)
    (guest,) = reported["guests"].values()
    # The vCPUs ran on both nodes, and all memory was bound to node 0.
    assert guest["windows"] > 0 and guest["lar_before"] == pytest.approx(0.5, abs=0.1)


def test_a_file_of_perf_becomes_a_recording_that_tells_the_same(perf_data: Path, tmp_path: Path):
    out = tmp_path / "out.vmptrace"
    done = CliRunner().invoke(record, [str(out), "--from", str(perf_data), "--json"])
    assert done.exit_code == 0, done.output
    imported, direct = (json.loads(run(path, "--json").stdout) for path in (out, perf_data))
    assert imported["guests"] == direct["guests"]
    batches = sum(isinstance(event, SampleBatch) for event in iter_recording(out))
    reported = json.loads(done.stdout)
    assert errors("record", reported) == []
    assert reported["batches"] == batches > 0 and reported["size_bytes"] == out.stat().st_size


class EndingWorld(World):
    """A host of two guests whose time is over with their fifth window, whatever a machine gets done by then.

    It stands for ``threading.Timer``, too; ``after_s``: what that was to wait for.
    """

    after_s: float = 0.0
    end: Callable[[], None]

    def timer(self, after_s: float, end: Callable[[], None]) -> "EndingWorld":
        """Note what is to happen, and when."""
        self.after_s, self.end = after_s, end
        return self

    def start(self) -> None: ...

    def cancel(self) -> None: ...

    def harvest(self, guest: GuestTopology) -> SampleBatch:
        """End, perhaps."""
        if len(self.windows_s) == 9:
            self.end()
        return super().harvest(guest)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EndingWorld, Path]:
    """Return a host of two guests, and the configuration to record it with."""
    world = EndingWorld([guest("db1"), guest("web", cpu=0)])
    clock = ClockOfFreeDecisions()
    monkeypatch.setattr("vmplace.interfaces.recording_commands.threading", SimpleNamespace(Timer=world.timer))
    monkeypatch.setattr(
        "vmplace.agent.wiring.open_parts",
        lambda config, actuator: Parts(world, world, begun("auto"), "auto", actuator, clock=clock),
    )
    monkeypatch.setattr("vmplace.agent.wakeup.Wakeup.stop_on_signals", lambda _: None)
    config = tmp_path / "vmplace.toml"
    config.write_text(f'window_ms = 100\nstate_dir = "{tmp_path}"\nsocket = "{tmp_path}/control.sock"\n')
    return world, config


def test_a_host_is_watched_by_an_agent_that_changes_nothing(
    tmp_path: Path, watched: tuple[EndingWorld, Path]
) -> None:
    """It shows what would have been decided, and that it was not done: replay carries it out in its place."""
    world, config = watched
    out = tmp_path / "host.vmptrace"
    done = CliRunner().invoke(record, [str(out), "--duration", "0.8", "--config", str(config), "--json"])
    assert done.exit_code == 0, done.output
    reported = json.loads(done.stdout)
    assert reported["guests"] == 2 and reported["windows"] == 5 and not world.applied
    assert world.after_s == 0.8
    events = list(iter_recording(out))
    assert [one.acted for one in events if isinstance(one, RunFrame)] == [False]
    assert sum(isinstance(one, PlanFrame) for one in events) >= 4
    replayed = json.loads(run(out, "--json").stdout)
    assert replayed["decisions"] == 0 and replayed["guests"]["db1"]["lar_after"] == 1.0
    assert replayed["guests"]["web"]["moved_bytes"] == 0


def test_a_disk_that_gets_full_ends_a_recording_as_a_failure(
    tmp_path: Path, watched: tuple[EndingWorld, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses what /dev/full is to hold, again when it is closed."""
    added: list[str] = []
    add = Recorder.add

    def add_to_full(recorder: Recorder, of: GuestTopology, window: SampleBatch) -> None:
        added.append(of.name)
        if len(added) == 3:
            recorder._file = Path("/dev/full").open("wb")  # noqa: SIM115
        add(recorder, of, window)

    monkeypatch.setattr(Recorder, "add", add_to_full)
    world, config = watched
    out = tmp_path / "host.vmptrace"
    done = CliRunner().invoke(record, [str(out), "--duration", "20", "--config", str(config)])
    assert isinstance(done.exception, RecordingError) and "No space left" in str(done.exception)
    # It ends at once, and counts no windows that are not there.
    assert len(added) == 3 and len(world.windows_s) <= 4 and world.closed
    assert "windows of" not in done.output
