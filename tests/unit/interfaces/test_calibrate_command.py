"""``vmplace calibrate`` prints what was measured, and the same again when it is asked to show it."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.unit.interfaces.test_json_schemas import errors
from vmplace.errors import VmplaceError
from vmplace.interfaces import calibrate_command
from vmplace.interfaces.cli import cli
from vmplace.interfaces.options import NothingError
from vmplace.topology.calibration import Calibration, LoadedLatency, encoded, read_calibrated_host


def calibrated(out: Path, *words: str) -> str:
    done = CliRunner().invoke(cli, ["calibrate", *words, "--out", str(out)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_what_was_measured_is_printed_and_shown_again(tmp_path: Path) -> None:
    out = tmp_path / "bandwidth.json"
    reported = json.loads(calibrated(out, "--duration-ms", "20", "--json"))
    assert errors("calibrate", reported) == []
    assert reported["paths"] and reported["worker_sets"] and reported["schema_version"] == 1
    assert json.loads(calibrated(out, "--show", "--json")) == reported
    shown = calibrated(out, "--show")
    assert "canonical weights" in shown
    # Not where memory is too full to look for it.
    is_known = all(path.get("latency_ns") is not None for path in reported["paths"])
    assert ("ns for a line, idle" in shown) == is_known != ("latencies were not measured" in shown)
    assert "no links that farther nodes share" in shown and reported["links"] == []


def test_where_nothing_was_measured_there_is_nothing_to_show(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["calibrate", "--show", "--out", str(tmp_path / "absent.json")])
    assert isinstance(done.exception, NothingError) and "measure first" in str(done.exception.hint)


def test_without_latencies_it_is_said_why(tmp_path: Path) -> None:
    calibrated(out := tmp_path / "bandwidth.json", "--duration-ms", "20")
    found: Calibration = msgspec.json.decode(out.read_bytes(), type=Calibration)
    paths = tuple(msgspec.structs.replace(one, latency_ns=None) for one in found.paths)
    out.write_bytes(encoded(msgspec.structs.replace(found, paths=paths, loaded=())))
    shown = " ".join(calibrated(out, "--show").split())
    assert "latencies were not measured: that needs free memory on each node" in shown


def test_what_follows_for_plans_is_printed_and_that_others_took_cpus(tmp_path: Path) -> None:
    out = tmp_path / "bandwidth.json"
    calibrated(out, "--duration-ms", "20")
    found: Calibration = msgspec.json.decode(out.read_bytes(), type=Calibration)
    # Of a machine whose memory is too full to look for it.
    idle = found.paths[0].latency_ns or 100.0
    paths = tuple(msgspec.structs.replace(one, latency_ns=one.latency_ns or idle) for one in found.paths)
    found = msgspec.structs.replace(found, paths=paths)
    loaded = tuple(
        LoadedLatency(0, streams, round(1e9 * used), idle + 640 * used / (1 - used))
        for streams, used in ((1, 0.5), (2, 0.7), (3, 0.8))
    )
    # A controller of 1 GB/s has a line in 64 ns, and ten at a time.
    out.write_bytes(encoded(msgspec.structs.replace(found, loaded=loaded, cpu_share=1.0)))
    done = CliRunner().invoke(cli, ["calibrate", "--show", "--out", str(out)])
    assert "an access waits 640 to 640 ns at a controller that is half used" in done.stdout
    as_json = CliRunner().invoke(cli, ["calibrate", "--show", "--json", "--out", str(out)])
    assert json.loads(as_json.stdout)["queue"] == pytest.approx(10.0, rel=0.01)
    assert errors("calibrate", json.loads(as_json.stdout)) == []
    out.write_bytes(encoded(msgspec.structs.replace(found, loaded=loaded, cpu_share=0.6)))
    done = CliRunner().invoke(cli, ["calibrate", "--show", "--out", str(out)])
    assert "others took up to 40% of the CPUs" in done.stderr and "40%" not in done.stdout
    assert "not known; plans take" in done.stdout


def test_a_calibration_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the host leaves the former one, or the whole new one."""
    path, synced, sync = tmp_path / "b.json", [], os.fsync
    path.write_text("before")

    def fsync(fd: int) -> None:
        synced.append((Path(f"/proc/self/fd/{fd}").read_bytes(), path.read_text()))
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    calibrated(path, "--duration-ms", "20")
    assert synced == [(path.read_bytes(), "before")]


def test_a_file_beside_it_stays(tmp_path: Path) -> None:
    (tmp_path / "bandwidth.tmp").write_text("mine")
    calibrated(tmp_path / "bandwidth.json", "--duration-ms", "20")
    assert (tmp_path / "bandwidth.tmp").read_text() == "mine"


def test_it_is_kept_where_the_agent_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (settings := tmp_path / "vmplace.toml").write_text(f'state_dir = "{tmp_path}/state"\n')
    monkeypatch.setattr("vmplace.agent.config.DEFAULT_CONFIG", settings)
    # Not this machine's own file, should it be taken.
    monkeypatch.setattr(calibrate_command, "DEFAULT_PATH", tmp_path / "usual/bandwidth.json")
    assert CliRunner().invoke(cli, ["calibrate", "--duration-ms", "20"]).exit_code == 0
    host = read_calibrated_host(tmp_path / "state/bandwidth.json")
    assert host[0].bandwidths and host[1] is None


def test_nothing_is_measured_for_a_file_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vmplace.topology.streams.native.measure_streams", None)
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli, ["calibrate", "--out", str(tmp_path / "file/bandwidth.json")])
    assert isinstance(done.exception, VmplaceError) and "cannot be written" in str(done.exception)


def test_what_was_not_measured_is_reported_with_the_cure(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["calibrate", "--show", "--json", "--out", str(tmp_path / "none")])
    assert isinstance(done.exception, VmplaceError) and done.stdout == ""
    assert "vmplace calibrate" in str(done.exception.hint)
