"""When may a built thing be used again, and what does a killed build leave?"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import cache
from lab.errors import LabError


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VMPLACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(text: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / "out").write_text(text)

    return build


def test_the_same_inputs_build_once() -> None:
    first = cache.artifact("thing", {"a": "1"}, write("first"))
    second = cache.artifact("thing", {"a": "1"}, write("second"))
    assert first == second
    assert (second / "out").read_text() == "first"


def test_another_input_is_another_artifact() -> None:
    assert cache.artifact("thing", {"a": "1"}, write("x")) != cache.artifact("thing", {"a": "2"}, write("x"))


def test_a_failed_build_leaves_nothing(root: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        cache.artifact("thing", {}, fail)
    assert not cache.artifact_dir("thing", {}).exists()
    assert not list((root / "tmp").iterdir())


def _build_for_ever(folder: Path) -> None:
    (folder / "half").touch()
    time.sleep(600)


def test_a_killed_build_is_cleared_away_and_built_again(root: Path) -> None:
    builder = multiprocessing.Process(target=cache.artifact, args=("thing", {}, _build_for_ever))
    builder.start()
    deadline = time.monotonic() + 60
    while not list(root.glob("tmp/*/half")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cache.remove_stale() == []  # it is alive
    assert builder.pid
    os.kill(builder.pid, signal.SIGKILL)
    builder.join()
    assert [path.name for path in cache.remove_stale()] == [cache.artifact_dir("thing", {}).name]
    assert (cache.artifact("thing", {}, write("whole")) / "out").read_text() == "whole"


def test_content_hash_sees_content_and_names(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a").write_text("x")
    first = cache.content_hash([folder])
    (folder / "a").write_text("y")
    second = cache.content_hash([folder])
    (folder / "a").rename(folder / "b")
    assert len({first, second, cache.content_hash([folder])}) == 3


def test_clean_keeps_trees_and_clean_all_does_not(root: Path) -> None:
    for name in ("snapshot-ready", "kernel"):
        cache.artifact(name, {}, write("x"))
    cache.clean(everything=False)
    assert [path.name for path in root.glob("*-*")] == [cache.artifact_dir("kernel", {}).name]
    cache.clean(everything=True)
    assert not list(root.glob("*-*"))


def test_clean_refuses_while_the_cache_is_used() -> None:
    with cache.in_use(), cache.in_use(), pytest.raises(LabError, match="using the cache"):
        cache.clean(everything=True)


def test_prune_keeps_the_last_used(root: Path) -> None:
    paths = [cache.artifact("thing", {"n": str(n)}, write("x")) for n in range(3)]
    for age, path in enumerate(paths):
        os.utime(path, (1000 - age, 1000 - age))
    cache.artifact("thing", {"n": "2"}, write("x"))
    assert cache.prune(keep=2) == [paths[1]]


def test_a_snapshot_goes_with_its_parent() -> None:
    parent = cache.artifact("snapshot-ready", {}, write("x"))
    child = cache.artifact("snapshot-child", {"parent": parent.name}, write("x"))
    grandchild = cache.artifact("snapshot-grandchild", {"parent": child.name}, write("x"))
    assert cache.prune() == []
    cache.remove_tree(parent)
    assert cache.prune() == [child, grandchild]


def test_prune_removes_nothing_that_may_be_in_use() -> None:
    cache.artifact("thing", {}, write("x"))
    with cache.in_use():
        assert cache.prune(keep=0) == []
