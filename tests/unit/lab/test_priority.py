"""Does the emulator run before what else the machine does, as far as this machine lets it?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.priority import NICE, prefer_session, preferred
from lab.toolbox import started


def test_the_session_of_the_emulator_comes_before_others() -> None:
    group = Path("/proc/self/autogroup")
    if not group.exists() or os.getuid():
        pytest.skip("no autogroups, or not root")
    mine = group.read_text()
    with started([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        prefer_session(process.pid)
        assert Path(f"/proc/{process.pid}/autogroup").read_text().split()[-2:] == ["nice", str(NICE)]
    assert group.read_text() == mine


def test_a_machine_that_has_no_autogroups_loses_nothing(tmp_path: Path) -> None:
    prefer_session(os.getpid(), tmp_path)
    command = preferred([sys.executable, "-c", "import os; print(os.nice(0))"])
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(shown) == (max(os.nice(0) + NICE, -20) if os.getuid() == 0 else os.nice(0))
