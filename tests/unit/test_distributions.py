"""Does what hosts install hold nothing of the instrument, and each distribution all that it needs?"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from lab import commands
from lab.meter_cost import MeterCost
from lab.report_scenario import scenario_report
from vmplace.extensions import extension

ROOT = Path(__file__).parents[2]
NAMES = ("lab", "meter", "managers")
BUILD = "from setuptools import setup; setup()"


def built(folder: Path, out: Path) -> set[str]:
    """Return the files, C core aside, that setuptools puts into the wheel of a project."""
    pytest.importorskip("setuptools")
    command = [sys.executable, "-c", BUILD, "-q", "build_py", "--build-lib", str(out)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


def committed(folder: str) -> set[str]:
    list_files = ["git", "ls-files", folder]
    listed = subprocess.run(list_files, cwd=ROOT, capture_output=True, text=True, check=False)
    # In an unpacked sdist, which may lie in a checkout that ignores it.
    if not listed.stdout:
        pytest.skip("no git checkout")
    return set(listed.stdout.split())


def test_the_product_is_installed_without_the_lab(tmp_path: Path):
    files = built(ROOT, tmp_path)
    assert {path.split("/")[0] for path in files} == {"vmplace"}
    assert {path for path in committed("vmplace") if path.endswith((".py", ".vmptrace"))} <= files


def test_the_product_is_installed_with_the_hook(tmp_path: Path):
    pytest.importorskip("setuptools")
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    hook = tmp_path / "vmplace/interfaces/qemu-hook"
    assert hook.read_bytes() == (ROOT / "libvirt-hooks/qemu.d/vmplace").read_bytes()


def test_the_lab_is_installed_with_its_sources(tmp_path: Path):
    files = built(ROOT / "lab", tmp_path)
    assert {path.split("/")[0] for path in files} == {"lab"}
    assert committed("lab") - {"lab/pyproject.toml"} <= files


@pytest.mark.slow
def test_the_source_distribution_has_all_that_is_committed(tmp_path: Path):
    files, copy = committed("."), tmp_path / "copy"
    for path in files:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, copy / path, follow_symlinks=False)
    command = [sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        packed = {one.name.partition("/")[2] for one in archive if not one.isdir()}
    assert {path for path in files if path.split("/")[-1] != ".gitignore"} <= packed


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler")
def test_a_strict_editable_installation_has_the_program_beside_the_core(tmp_path: Path):
    pytest.importorskip("setuptools")
    copy = tmp_path / "copy"
    for path in committed("."):
        if path.startswith(
            ("vmplace/", "kvm-patches/", "setup.py", "pyproject.toml", "README.md", "LICENSE")
        ):
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, copy / path, follow_symlinks=False)
    command = [sys.executable, "setup.py", "-q", "editable_wheel", "-d", str(tmp_path), "--mode", "strict"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (core,) = copy.glob("build/__editable__*/vmplace/native/_native*.so")
    assert os.access(core.with_name("vmplace-apart"), os.X_OK)


def test_vmplace_finds_the_lab_by_its_entry_points():
    groups = ("vmplace.commands", "vmplace.guest_cost", "vmplace.reports")
    found = [extension(group, name) for group, name in zip(groups, NAMES, strict=True)]
    assert found == [commands.lab, MeterCost, scenario_report]
