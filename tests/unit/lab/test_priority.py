"""Does the emulator run before what else the machine does, as far as this machine lets it?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.priority import NICE, is_to_wait, prefer_session, preferred
from lab.toolbox import started


def test_the_session_of_the_emulator_comes_before_others() -> None:
    group = Path("/proc/self/autogroup")
    if not group.exists() or not may_come_first() or is_to_wait():
        pytest.skip("no autogroups, no right to come before others, or asked to wait")
    mine = group.read_text()
    with started([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        prefer_session(process.pid)
        assert Path(f"/proc/{process.pid}/autogroup").read_text().split()[-2:] == ["nice", str(NICE)]
    assert group.read_text() == mine


def test_a_machine_that_has_no_autogroups_loses_nothing(tmp_path: Path) -> None:
    prefer_session(os.getpid(), tmp_path)
    command = preferred([sys.executable, "-c", "import os; print(os.nice(0))"])
    assert nice_of(command) == (max(os.nice(0) + NICE, -20) if may_come_first() else os.nice(0))


def test_who_was_given_a_nice_value_waits_for_others(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    asked = [
        "import os, sys; from pathlib import Path; from lab.priority import prefer_session, preferred",
        "prefer_session(1, Path(sys.argv[1]))",
        "command = preferred([sys.executable, '-c', 'import os; print(os.nice(0))'])",
        "os.execvp(command[0], command)",
    ]
    wanted = max(os.nice(0), 0) + 5
    command = [sys.executable, "-c", "; ".join(asked), str(tmp_path)]
    assert nice_of(["nice", "-n", str(wanted - os.nice(0)), *command]) == min(wanted, 19)
    assert not (tmp_path / "1" / "autogroup").exists()


def nice_of(command: list[str]) -> int:
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def may_come_first() -> bool:
    """Return whether this process has the right to a nice value before others' (CAP_SYS_NICE)."""
    return nice_of(["nice", "-n", "-1", sys.executable, "-c", "import os; print(os.nice(0))"]) < os.nice(0)
