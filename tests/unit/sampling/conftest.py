"""Fixtures: a guest that is a real process, and a sysfs whose idle bitmap is a file."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sampling.guest_process import CHILD, Bitmap, GuestProcess, ram_range
from vmplace.sampling.source import SourceSetup
from vmplace.topology.guest import GuestTopology
from vmplace.topology.host import HostTopology, Node
from vmplace.topology.procfs import read_start_time


@pytest.fixture
def host() -> HostTopology:
    return HostTopology((Node(0, (0, 1), 1 << 30, 1 << 29),), {(0, 0): 10})


@pytest.fixture(params=[4096], ids=["4K"])
def guest(request: pytest.FixtureRequest) -> Iterator[GuestProcess]:
    """Give a guest of 1024 pages from a 2 MiB border, none of them present; parameter: page size."""
    arguments = [sys.executable, "-c", CHILD, "1024", str(request.param)]
    with subprocess.Popen(arguments, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout
        ram = ram_range(int(process.stdout.readline()), 1024)
        start_time = read_start_time(process.pid)
        yield GuestProcess(process, GuestTopology("child", process.pid, start_time, "kvm", (), (ram,)))
        process.kill()


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Give a sysfs with this machine's nodes, and an idle bitmap in a file."""
    (tmp_path / "kernel/mm/page_idle").mkdir(parents=True)
    (tmp_path / "devices").symlink_to("/sys/devices")
    return tmp_path


@pytest.fixture
def bitmap(sysfs: Path) -> Bitmap:
    return Bitmap(sysfs / "kernel/mm/page_idle/bitmap")


@pytest.fixture
def setup(host: HostTopology, sysfs: Path, bitmap: Bitmap, tmp_path: Path) -> SourceSetup:
    return SourceSetup(host, sysfs, state_dir=tmp_path / "state")
