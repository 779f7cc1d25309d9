"""The unit starts what README installs, and says nothing that systemd does not know."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "vmplace/interfaces/vmplace.service"


def test_each_command_is_absolute_and_where_readme_installs_it():
    commands = re.findall(r"^Exec\w+=-?(\S+)", UNIT.read_text(), re.M)
    assert sorted(commands) == ["/bin/kill", "/opt/vmplace/bin/vmplace", "/opt/vmplace/bin/vmplace"]
    readme = (ROOT / "README.md").read_text()
    exporter = UNIT.with_name("vmplace-metrics.service").read_text()
    assert re.findall(r"^ExecStart=(\S+)", exporter, re.M) == ["/opt/vmplace/bin/vmplace"]
    assert "python3 -m venv /opt/vmplace\n" in readme and "/opt/vmplace/bin/pip install" in readme


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_finds_nothing_wrong(tmp_path: Path):
    # A command that is there in place of one that is not installed here.
    unit = tmp_path / "vmplace.service"
    unit.write_text(UNIT.read_text().replace("/opt/vmplace/bin/vmplace", "/bin/true"))
    argv = ["systemd-analyze", "verify", "--man=no", str(unit)]
    reported = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (reported.returncode, reported.stderr) == (0, "")
