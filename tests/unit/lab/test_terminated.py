"""`kill` ends a run of the lab's tests, and what they have started, as Ctrl-C does."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONFTEST = """
import pytest
from lab.emulated_host import _terminated_by_signal
from lab.toolbox import started

@pytest.fixture(scope="session")
def host():
    with _terminated_by_signal(), started(["setpriv", "--pdeathsig", "KILL", "sleep", "600"]) as process:
        yield process
"""
TESTS = """
import time
from pathlib import Path
import pytest

@pytest.mark.flaky(reruns=1)
def test_one(host):
    with Path("began").open("a") as file: file.write(f"{host.pid}\\n")
    time.sleep(600)

def test_other(host):
    test_one(host)
"""


@pytest.mark.slow
def test_a_run_of_tests_that_is_terminated_runs_no_other_test_and_leaves_nothing(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_made.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    began = tmp_path / "began"
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 120
        while not began.exists() or not began.read_text().endswith("\n"):
            assert run.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=120)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    (pid,) = began.read_text().split()
    assert not Path(f"/proc/{pid}").exists()
