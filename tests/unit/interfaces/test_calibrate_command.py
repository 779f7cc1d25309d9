"""``vmplace calibrate`` prints what was measured, and the same again when it is asked to show it."""

import json
from pathlib import Path

from click.testing import CliRunner

from tests.unit.interfaces.test_json_schemas import errors
from vmplace.errors import VmplaceError
from vmplace.interfaces.cli import cli


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
    assert "canonical weights" in calibrated(out, "--show")


def test_what_was_not_measured_is_reported_with_the_cure(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["calibrate", "--show", "--json", "--out", str(tmp_path / "none")])
    assert isinstance(done.exception, VmplaceError) and done.stdout == ""
    assert "vmplace calibrate" in str(done.exception.hint)
