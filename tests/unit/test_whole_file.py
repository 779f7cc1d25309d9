"""A file is replaced whole or not at all; one that must last is on disk once the call returns."""

import os
import stat
from pathlib import Path

import pytest

from vmplace.whole_file import replace_file


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target := tmp_path / "x").write_text("old")
    monkeypatch.setattr(os, "fchmod", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        replace_file(target, b"new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_what_must_last_is_on_disk_before_it_has_its_name_and_then_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync(2): the entry of a file in its folder is on disk only once the folder is synced, too."""
    path, synced, sync = tmp_path / "x", list[tuple[str, str]](), os.fsync
    path.write_text("old")

    def fsync(fd: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        synced.append(("" if is_folder else Path(f"/proc/self/fd/{fd}").read_text(), path.read_text()))
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    replace_file(path, b"new", mode=0o600, lasting=True)
    assert synced == [("new", "old"), ("", "new")]
    assert path.stat().st_mode & 0o777 == 0o600
