"""The emulated kernel gets the TSC's frequency where it is known.  Truth: /proc/cpuinfo of machines."""

import os
from pathlib import Path

import pytest

from lab.emulator import KEPT_LOGS, kernel_command_line, log_files, port_arguments
from lab.topology import read_topology

VIRTUAL = """processor\t: 0
cpu MHz\t\t: 2596.144
flags\t\t: fpu tsc constant_tsc nonstop_tsc tsc_known_freq hypervisor
processor\t: 1
cpu MHz\t\t: 2596.144
flags\t\t: fpu tsc constant_tsc nonstop_tsc tsc_known_freq hypervisor
"""


@pytest.mark.parametrize(
    ("cpuinfo", "reported"),
    [
        (VIRTUAL, True),
        (VIRTUAL.replace(" hypervisor", ""), False),
        (VIRTUAL.replace(" tsc_known_freq", ""), False),
        ("CPU architecture: 8\n", False),
    ],
)
def test_the_frequency_is_reported_where_a_hypervisor_gave_it(
    tmp_path: Path, cpuinfo: str, reported: bool
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    words = kernel_command_line(path).split()
    assert ("tsc_early_khz=2596144" in words) == reported
    assert "tsc=reliable" in words


def test_each_further_port_is_a_socket_outside_and_has_its_name_inside() -> None:
    words = port_arguments(["a.b", "c"])
    assert words.count("-chardev") == words.count("-device") == 2
    assert "virtserialport,chardev=c,name=c" in words and port_arguments([]) == []


def test_logs_of_a_machine_that_runs_are_kept_however_old_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VMPLACE_CACHE", str(tmp_path))
    running, logs = tmp_path / "run/77-abc", tmp_path / "logs"
    running.mkdir(parents=True)
    logs.mkdir()
    for age, name in enumerate(["new-1-x", *["old-2-y"] * (KEPT_LOGS - 1), "intel-77-abc", "intel-78-abc"]):
        path = logs / f"{name}.{age}.console.log"
        path.touch()
        os.utime(path, (10**9 - age, 10**9 - age))
    (logs / f"intel-77-abc.{KEPT_LOGS}.console.log").rename(logs / "intel-77-abc.console.log")
    log_files(read_topology("n2"), running)
    assert (logs / "intel-77-abc.console.log").exists() and len([*logs.iterdir()]) == KEPT_LOGS + 1
