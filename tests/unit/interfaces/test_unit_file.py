"""The unit starts what the manual installs, and says nothing that systemd does not know."""

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "vmplace/interfaces/vmplace.service"
UNITS = sorted(path.stem for path in UNIT.parent.glob("*.service"))


def test_each_command_is_absolute_and_where_the_manual_installs_it():
    commands = re.findall(r"^Exec\w+=-?(\S+)", UNIT.read_text(), re.M)
    assert sorted(commands) == ["/bin/kill", "/opt/vmplace/bin/vmplace", "/opt/vmplace/bin/vmplace"]
    manual = (ROOT / "docs/install.md").read_text()
    exporter = UNIT.with_name("vmplace-metrics.service").read_text()
    assert re.findall(r"^ExecStart=(\S+)", exporter, re.M) == ["/opt/vmplace/bin/vmplace"]
    assert "python3 -m venv /opt/vmplace\n" in manual and "/opt/vmplace/bin/pip install" in manual


def test_an_agent_is_started_again_however_often_it_ends():
    """Who takes all of the host's memory has the kernel end it; systemd.unit(5): 0 is no limit of starts."""
    said = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.M))
    assert (said["Restart"], said["StartLimitIntervalSec"]) == ("on-failure", "0")


def complaints(folder: Path, name: str, drop_in: str = "") -> str:
    """Return what systemd finds wrong with a unit, and with an administrator's file that changes it."""
    # A command that is there in place of one that is not installed here.
    unit = folder / f"{name}.service"
    unit.write_text(UNIT.with_name(unit.name).read_text().replace("/opt/vmplace/bin/vmplace", "/bin/true"))
    if drop_in:
        (changes := folder / f"{unit.name}.d").mkdir()
        # As `systemctl edit` names it.
        (changes / "override.conf").write_text(drop_in)
    argv = ["systemd-analyze", "verify", "--man=no", str(unit)]
    reported = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert reported.stderr or reported.returncode == 0
    return reported.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(tmp_path: Path, name: str):
    assert complaints(tmp_path, name) == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
@pytest.mark.parametrize("name", UNITS)
def test_an_administrator_may_change_a_unit_by_a_file_of_their_own(tmp_path: Path, name: str):
    """Another limit and another command, and one that is wrong, which shows that the file is read."""
    changes = "[Service]\nMemoryMax=512M\nNice=5\nExecStart=\nExecStart=/bin/true --config /etc/other.toml\n"
    assert complaints(tmp_path, name, changes) == ""
    (wrong := tmp_path / "wrong").mkdir()
    assert "override.conf:2: " in complaints(wrong, name, "[Service]\nMemoryMax=much\n")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_the_manual_lets_in_a_prometheus_on_another_host(tmp_path: Path):
    """The unit denies all other addresses, whatever the exporter listens on."""
    assert "\nIPAddressDeny=any\n" in UNIT.with_name("vmplace-metrics.service").read_text()
    (shown,) = re.findall(r"^    \[Service\]\n(?:    .*\n)+", (ROOT / "docs/operate.md").read_text(), re.M)
    drop_in = textwrap.dedent(shown)
    assert "\nIPAddressAllow=PROMETHEUS\n" in drop_in
    filled = drop_in.replace("PROMETHEUS", "192.0.2.20").replace("ADDRESS:", "192.0.2.10:")
    assert complaints(tmp_path, "vmplace-metrics", filled.replace("/usr/bin/vmplace", "/bin/true")) == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
@pytest.mark.parametrize(("name", "most"), [("vmplace", 2.5), ("vmplace-metrics", 1.5)])
def test_the_sandbox_is_as_tight_as_the_manual_says(tmp_path: Path, name: str, most: float):
    unit = tmp_path / f"{name}.service"
    unit.write_text(UNIT.with_name(unit.name).read_text().replace("/opt/vmplace/bin/vmplace", "/bin/true"))
    argv = ["systemd-analyze", "security", "--offline=true", f"--threshold={10 * most:.0f}", str(unit)]
    rated = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout[-200:]
    said = " ".join((ROOT / "docs/install.md").read_text().split())
    assert f"`{name}.service` {most}" in said


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_the_sandbox_lets_threads_have_file_tables_of_their_own():
    """Without the call a killed agent could keep its lock (step_thread.py)."""
    assert "SystemCallFilter=@system-service\n" in UNIT.read_text()
    todo, allowed = ["@system-service"], set[str]()
    while todo:
        argv = ["systemd-analyze", "syscall-filter", todo.pop()]
        listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
        allowed |= set(listed)
        todo += [one for one in listed[1:] if one.startswith("@")]
    assert "close_range" in allowed
