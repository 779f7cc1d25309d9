"""Does a check of the series build each step once, and again what a changed patch may have broken?

What builds kernels is replaced: which steps are built is all that is asked here.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import patch_check
from lab.errors import LabError
from lab.progress import Progress

Check = Callable[[], list[str]]


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(name)
    (tmp_path / "series").write_text("one\ntwo\nthree\n")
    return tmp_path


@pytest.fixture
def check(patches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Return a check that tells the last patch of each step that is built; one that holds "bad" is not."""
    built: list[str] = []
    applied: list[Path] = []

    def apply(_toolbox: Path, _work: Path, _tree: str, files: list[Path], _log: Path) -> None:
        applied[:] = files

    def build(_toolbox: Path, _work: Path, variant: patch_check.Variant, *_: Any) -> None:
        if "bad" in applied[-1].read_text():
            raise LabError("it does not build")
        built.append(f"{applied[-1].name} {variant.name}")

    monkeypatch.setenv("VMPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("lab.trees.toolbox", lambda _progress: tmp_path / "tree" / "root")
    monkeypatch.setattr(patch_check, "apply_series", apply)
    monkeypatch.setattr(
        patch_check, "_unpack", lambda _toolbox, work, _progress: work.mkdir(parents=True, exist_ok=True)
    )
    monkeypatch.setattr(patch_check, "_checkpatch", lambda *_: None)
    monkeypatch.setattr(patch_check, "_build", build)

    def checked() -> list[str]:
        built.clear()
        patch_check.check_patches(Progress(), patches, quick=True)
        return list(built)

    return checked


def test_what_was_built_once_is_not_built_again(check: Check) -> None:
    last = ["three on-module", "three off-module", "three on-amd", "three on-intel"]
    each = [f"{name} {variant}" for name in ("one", "two", "three") for variant in ("on", "off")]
    assert check() == each + last
    assert check() == []


def test_after_a_patch_that_does_not_build_the_check_goes_on_from_there(check: Check, patches: Path) -> None:
    (patches / "two").write_text("bad")
    with pytest.raises(LabError):
        check()
    with pytest.raises(LabError):
        check()
    (patches / "two").write_text("good")
    assert check()[:2] == ["two on", "two off"]


def test_a_changed_patch_has_all_steps_from_it_on_built_anew(check: Check, patches: Path) -> None:
    check()
    (patches / "two").write_text("changed")
    assert {name.split()[0] for name in check()} == {"two", "three"}


def test_a_patch_that_adds_tests_alone_is_not_built(check: Check, patches: Path) -> None:
    (patches / "two").write_text("--- a/tools/testing/one.c\n+++ b/tools/testing/one.c\n")
    assert not [name for name in check() if name.startswith("two")]
    (patches / "two").write_text("--- a/tools/testing/one.c\n+++ b/mm/one.c\n")
    assert {name.split()[0] for name in check()} == {"two", "three"}


def test_what_a_killed_build_left_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = tmp_path / "objects-on"
    seen: list[bool] = []

    def build(*_: Any, **__: Any) -> None:
        seen.append((objects / "left").exists())
        (objects / "left").touch()
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(patch_check, "run_in_tree", build)
    for _ in range(3):
        with contextlib.suppress(KeyboardInterrupt):
            patch_check._build(tmp_path, tmp_path, patch_check.MAIN_VARIANTS[0], ("mm/",), tmp_path / "log")
    # Configuration, preparation and compiler run in turn: the first preparation is killed.
    assert seen == [False, True] + [False, True, True] + [True, True, True]
