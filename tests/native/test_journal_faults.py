"""No failure, no kill and no power cut at any call of the journal loses a record that was acted upon.

FAULTS=1000 sets as many of each kind (`make faults`); without it, fewer: each call of a run fails at least
once, and is killed at least once.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = int(os.environ.get("FAULTS", "300"))


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("shim") / "fault_shim.so"
    source = Path(__file__).with_name("fault_shim.c")
    argv = ["gcc", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(built), str(source), "-ldl"]
    subprocess.run(argv, check=True)
    return built


@pytest.fixture
def folder() -> Iterator[Path]:
    # In memory, where it can be: what is tested is the order of calls, not a disk.
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None))
    yield made
    shutil.rmtree(made)


def faults(shim: Path, kind: str, folder: Path, count: int = FAULTS, left_out: int = 0) -> dict[str, Any]:
    argv = [sys.executable, "-m", "tests.native.journal_faults", kind, str(folder), str(count), str(left_out)]
    env = os.environ | {"LD_PRELOAD": str(shim), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["fail", "kill", "power"])
def test_no_record_is_lost_and_no_page_moves_without_one(shim: Path, folder: Path, kind: str):
    found = faults(shim, kind, folder)
    assert found["broken"] == []
    # Each call of a run, and a run that opens, appends, compacts.
    assert found["calls"] > 60 and found["turns"] > 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("left_out", [1, 2, 3], ids=["fdatasync", "fsync of files", "fsync of directories"])
def test_a_sync_that_lacks_costs_records_where_the_power_is_cut(shim: Path, folder: Path, left_out: int):
    found = faults(shim, "power", folder, 100, left_out)
    assert any("journal" in one for one in found["broken"])
