"""The package of a later commit is newer for apt; Debian's own tools judge."""

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.package import _remove_earlier, commit_mark, versioned

ROOT = Path(__file__).parents[3]
CHANGELOG = (ROOT / "debian/changelog").read_text()
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg") is None, reason="needs dpkg")


def version(changelog: str, tmp_path: Path) -> str:
    (tmp_path / "changelog").write_text(changelog)
    asked = ["dpkg-parsechangelog", "-l", str(tmp_path / "changelog"), "-S", "Version"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def commit(checkout: Path, date: str) -> str:
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@example"]
    env = {"GIT_COMMITTER_DATE": date, "PATH": "/usr/bin:/bin"}
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a"], check=True, env=env)
    return commit_mark(checkout)


@needs_dpkg
def test_a_later_commit_is_a_newer_package_also_on_the_same_day(tmp_path: Path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    dates = ("2026-11-30T23:30:00 +0200", "2026-11-30T22:30:00 +0000", "2026-12-01T00:00:00 +0000")
    marks = [commit(tmp_path, date) for date in dates]
    texts = [CHANGELOG, *(versioned(CHANGELOG, one) for one in marks)]
    versions = [version(text, tmp_path) for text in texts]
    assert versions[1].startswith(f"{versions[0]}+git20261130213000.")
    for older, newer in itertools.pairwise(versions):
        subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


def test_packages_of_earlier_builds_are_removed_and_nothing_else(tmp_path: Path):
    for name in ("vmplace_1_amd64.deb", "vmplace-lab_1_all.deb", "linux_1_amd64.deb"):
        (tmp_path / name).touch()
    _remove_earlier(tmp_path, "vmplace")
    assert {path.name for path in tmp_path.iterdir()} == {"vmplace-lab_1_all.deb", "linux_1_amd64.deb"}
