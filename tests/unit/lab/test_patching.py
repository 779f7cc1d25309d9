"""Which files does a changed patch series make a build compile again?"""

import subprocess
from pathlib import Path

import pytest

from lab import patching
from lab.errors import LabError
from lab.patching import apply_series, series, touched_files

SOURCE = "linux"

CHANGE = "--- a/mm/a.c\n+++ b/mm/a.c\n@@ -1 +1 @@\n-old\n+new\n"
CREATE = "--- /dev/null\n+++ b/mm/made.c\n@@ -0,0 +1 @@\n+made\n"
REMOVE = "--- a/mm/b.c\n+++ /dev/null\n@@ -1 +0,0 @@\n-other\n"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a work folder with a two-file source tree; patch runs here, not in the toolbox."""

    def run_here(_tree: Path, argv: list[str], **_options: object) -> None:
        subprocess.run(argv, cwd=tmp_path / "scratch", check=True, capture_output=True)

    monkeypatch.setattr(patching, "run_in_tree", run_here)
    mm = tmp_path / SOURCE / "mm"
    mm.mkdir(parents=True)
    (mm / "a.c").write_text("old\n")
    (mm / "b.c").write_text("other\n")
    return tmp_path


def applied(work: Path, *patches: str) -> list[str]:
    files = []
    for number, text in enumerate(patches):
        files.append(work / f"{number}.patch")
        files[-1].write_text(text)
    return apply_series(work, work, SOURCE, files, work / "log")


def test_only_what_a_patch_changes_is_written(work: Path) -> None:
    before = (work / SOURCE / "mm/b.c").stat().st_mtime_ns
    assert applied(work, CHANGE) == ["mm/a.c"]
    assert (work / SOURCE / "mm/a.c").read_text() == "new\n"
    assert (work / SOURCE / "mm/b.c").stat().st_mtime_ns == before


def test_the_same_series_again_writes_nothing(work: Path) -> None:
    applied(work, CHANGE, CREATE, REMOVE)
    assert applied(work, CHANGE, CREATE, REMOVE) == []


def test_an_empty_series_restores_the_pristine_tree(work: Path) -> None:
    applied(work, CHANGE, CREATE, REMOVE)
    assert not (work / SOURCE / "mm/b.c").exists()
    assert applied(work) == ["mm/a.c", "mm/b.c", "mm/made.c"]
    assert (work / SOURCE / "mm/a.c").read_text() == "old\n"
    assert (work / SOURCE / "mm/b.c").read_text() == "other\n"
    assert not (work / SOURCE / "mm/made.c").exists()


def test_a_patch_that_does_not_apply_leaves_the_tree_alone(work: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        applied(work, CHANGE.replace("-old", "-odd"))
    assert (work / SOURCE / "mm/a.c").read_text() == "old\n"


def test_touched_files_are_those_of_both_sides() -> None:
    assert touched_files([CHANGE, CREATE, REMOVE]) == ["mm/a.c", "mm/b.c", "mm/made.c"]


def test_without_the_folder_of_patches_nothing_is_built(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="series") as caught:
        series(tmp_path / "kvm-patches")
    assert "checkout" in (caught.value.hint or "")


def test_series_skips_comments(tmp_path: Path) -> None:
    (tmp_path / "series").write_text("# first\n0001-x.patch  # why\n\n")
    assert series(tmp_path) == [tmp_path / "0001-x.patch"]
