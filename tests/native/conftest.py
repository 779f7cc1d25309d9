"""The tests of the C core say nothing of how fast a machine is."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.any_machine  # noqa: F401


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    # Not below pytest's own folder, which is root's alone.
    with tempfile.TemporaryDirectory() as folder:
        built, source = Path(folder) / "holder", Path(__file__).with_name("holder.c")
        flags = ["-Wall", "-Werror", "-O1", "-pthread"]
        subprocess.run(["gcc", *flags, "-o", built, source], check=True, timeout=120)
        Path(folder).chmod(0o755)
        yield built
