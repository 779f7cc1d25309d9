"""Whoever runs the tests sees what they wait for, although pytest captures what tests print."""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import KVM, Waiting

CONFTEST = Path(__file__).parents[1] / "conftest.py"
CLOCK = """
NOW_S, LOOKS = [0.0], []
class Clock:
    @staticmethod
    def monotonic():
        if threading.current_thread() is not threading.main_thread():
            LOOKS.append(NOW_S[0])
        return NOW_S[0]
"""
"""A clock that goes on when a test says so, and notes when somebody looks whether it takes long."""
TESTS = """
import sys, time
def pass_s(seconds):
    from_outside = next(one for one in sys.modules.values() if hasattr(one, "LOOKS"))
    from_outside.NOW_S[0] += seconds
    looks, until = len(from_outside.LOOKS), time.monotonic() + 60
    # The first of them may have begun before.
    while len(from_outside.LOOKS) < looks + 3 and time.monotonic() < until:
        time.sleep(0.01)
def test_quick(): pass_s(29)
def test_slow(): print("captured"); pass_s(31)
def test_lab():
    from lab.progress import Progress
    with Progress().step("n2: boot"): pass_s(61)
"""


def test_a_slow_test_is_named_while_it_runs(tmp_path: Path):
    conftest = CONFTEST.read_text()
    assert "self._over.wait(self._every_s)" in conftest and "time.monotonic()" in conftest
    conftest = conftest.replace("self._over.wait(self._every_s)", "self._over.wait(0.05)")
    (tmp_path / "conftest.py").write_text(conftest.replace("time.monotonic()", "Clock.monotonic()") + CLOCK)
    (tmp_path / "test_made.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=240)
    assert "[    60 s] 1 of 3 done; test_made.py::test_slow: 31 s\n" in done.stderr
    assert re.search(r"2 of 3 done; test_made.py::test_lab: 61 s; n2: boot: \d+ s\n", done.stderr)
    assert "test_quick" not in done.stderr and "captured" not in done.stderr


def test_of_tests_that_run_beside_each_other_the_one_that_takes_longest_is_named():
    """As pytest-xdist reports them to its first process."""
    reading, writing = os.pipe()
    waiting = Waiting(writing, every_s=0.01)
    waiting.pytest_xdist_node_collection_finished(["slow", "quick", "late"])
    for begun in ("slow", "quick", "late"):
        waiting.pytest_runtest_logstart(begun)
    waiting.pytest_runtest_logfinish("quick")
    with os.fdopen(reading) as lines:
        said = [next(line for line in lines if "1 of 3 done" in line)]
        waiting.pytest_unconfigure()
        said += [line for line in lines if line.strip()]
    assert {re.sub(r".*; (\w+): \d+ s\n", r"\1", line) for line in said} == {"slow"}


@pytest.mark.kvm
def test_one_that_looks_for_guests_is_alone_with_kvm():
    with KVM.open("rb") as another, pytest.raises(BlockingIOError):
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
