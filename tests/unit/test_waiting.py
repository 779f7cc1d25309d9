"""Whoever runs the tests sees what they wait for, although pytest captures what tests print."""

import re
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = """
import time
def test_quick(): pass
def test_slow(): print("captured"); time.sleep(1.5)
def test_lab():
    from lab.progress import Progress
    with Progress().step("n2: boot"): time.sleep(1.5)
"""


def test_a_slow_test_is_named_while_it_runs(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text().replace("EVERY_S = 30.0", "EVERY_S = 0.5"))
    (tmp_path / "test_made.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=120)
    assert "1 of 3 done; test_made.py::test_slow: " in done.stderr
    assert re.search(r"2 of 3 done; test_made.py::test_lab: \d s; n2: boot: \d s\n", done.stderr)
    assert "test_quick" not in done.stderr and "captured" not in done.stderr
