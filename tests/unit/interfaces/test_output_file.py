"""What a command writes appears whole; where it cannot, the former file stays and the cure is named."""

import contextlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.nobody import holds_for_nobody, needs_nobody
from vmplace.errors import VmplaceError
from vmplace.interfaces.cli import cli
from vmplace.interfaces.output_file import opened_output
from vmplace.interfaces.report_command import write_page

ROOT = Path(__file__).parents[3]


@needs_nobody
def test_a_folder_that_is_not_for_this_user_is_reported(tmp_path: Path):
    (folder := tmp_path / "state").mkdir(mode=0o700)
    tmp_path.chmod(0o755)

    def names_the_cure() -> bool:
        with pytest.raises(VmplaceError, match="Permission denied") as caught, opened_output(Path("state/x")):
            pass
        return "sudo" in str(caught.value.hint)

    with contextlib.chdir(tmp_path):
        assert holds_for_nobody(names_the_cure)
    assert list(folder.iterdir()) == []


def test_a_full_disk_leaves_the_former_report(tmp_path: Path):
    (path := tmp_path / "report.html").write_text("former")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(VmplaceError, match="cannot be written"):
            write_page(path, "title", "", [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("report.html", "former")]


def test_a_report_is_in_utf_8_whatever_the_locale(tmp_path: Path):
    code = (
        "from pathlib import Path; from vmplace.interfaces.report_command import write_page;"
        "write_page(Path('report.html'), 'a \\u2026 \\udcff', '', [])"
    )
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=env)
    assert "a \u2026 ?" in (tmp_path / "report.html").read_bytes().decode()


@pytest.mark.parametrize(
    "words", [["report", "{}/table.json"], ["demo", "--no-open"], ["calibrate"]], ids=lambda words: words[0]
)
def test_no_folder_is_made_that_somebody_may_have_misspelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    monkeypatch.setattr("vmplace.topology.streams.native.measure_streams", None)
    row = {"host": "n4", "mix": "gups", "policy": "vmplace", "source": "full", "run_time_s": 1.0}
    row |= {"oracle_share": 0.97, "worst_guest_slowdown": 0.1}
    (tmp_path / "table.json").write_text(json.dumps({"rows": [row]}))
    given = [word.format(tmp_path) for word in words]
    done = CliRunner().invoke(cli, [*given, "--out", str(tmp_path / "no/such/out")])
    assert isinstance(done.exception, VmplaceError) and "cannot be written" in str(done.exception)
    assert str(done.exception.hint).startswith("make its folder first") and not (tmp_path / "no").exists()
