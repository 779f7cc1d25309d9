"""A user without rights tries to change each file that `vmplace install` writes, and its folders: in vain."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.nobody import holds_for_nobody, needs_nobody
from vmplace.interfaces import install_command
from vmplace.interfaces.cli import cli

pytestmark = needs_nobody
COMPLETION = "usr/local/share/bash-completion/completions/vmplace"
MODES = {
    "etc/systemd/system/vmplace.service": 0o644,
    "etc/systemd/system/vmplace-metrics.service": 0o644,
    "etc/vmplace/vmplace.toml": 0o644,
    "etc/vmplace/installed.json": 0o644,
    "etc/libvirt/hooks/qemu.d/vmplace": 0o755,
    COMPLETION: 0o644,
}
LINK = "usr/local/bin/vmplace"
THERE = ("etc/libvirt", "etc/systemd/system", "usr/local/bin")


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install into a root file system that others may enter, under the umask that shields least."""
    umask = os.umask(0o022)
    made = Path(tempfile.mkdtemp(prefix="vmplace-test-"))
    made.chmod(0o755)
    for folder in ("scripts", *(f"image/{name}" for name in THERE)):
        (made / folder).mkdir(parents=True)
    (made / "scripts/vmplace").touch()
    monkeypatch.setattr(install_command, "HIDDEN", ())
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(made / "scripts"))
    os.umask(0)
    try:
        done = CliRunner().invoke(cli, ["install", "--root", str(made / "image")], standalone_mode=False)
        assert done.exception is None, done.exception
        yield made / "image"
    finally:
        os.umask(umask)
        shutil.rmtree(made)


def state(image: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return mode, owner, group and content of all that is there."""
    found = {}
    for path in (image, *image.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        content = str(path.readlink()).encode() if path.is_symlink() else content
        found[str(path.relative_to(image))] = status.st_mode, status.st_uid, status.st_gid, content
    return found


def attempts(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the ways to change what is at ``path``: its content, its rights, its place."""
    beside = path.with_name(f"{path.name}.new")
    if path.is_dir():
        yield "add a file", lambda: (path / "new").touch()
        yield "add a folder", lambda: (path / "new.d").mkdir()
        yield "add a link", lambda: (path / "link").symlink_to("/etc/passwd")
    elif not path.is_symlink():
        yield "append", lambda: path.open("ab")
        yield "write", lambda: path.open("r+b")
        yield "cut", lambda: os.truncate(path, 0)
        yield "link", lambda: beside.hardlink_to(path)
    yield "give away", lambda: os.lchown(path, os.getuid(), os.getgid())
    yield "touch", lambda: os.utime(path, (0, 0), follow_symlinks=False)
    if not path.is_symlink():
        yield "chmod", lambda: path.chmod(0o777)
    yield "move", lambda: path.rename(beside)
    yield "remove", lambda: shutil.rmtree(path) if path.is_dir() else path.unlink()


def is_shut(paths: list[Path]) -> bool:
    """Try all of it on each path; tell whether every attempt was refused for want of rights."""
    others = []
    for path in paths:
        for what, attempt in attempts(path):
            try:
                attempt()
            except PermissionError:
                continue
            except OSError as err:
                others.append(f"{what} {path}: {err.strerror}")
            else:
                others.append(f"{what} {path}")
    print(*others, sep="\n")
    return not others


def test_files_are_root_s_and_of_the_modes_that_are_meant(image: Path):
    found = state(image)
    files = {name: stat.S_IMODE(mode) for name, (mode, *_) in found.items() if stat.S_ISREG(mode)}
    assert files == MODES and stat.S_ISLNK(found[LINK][0])
    assert {(uid, gid) for _, uid, gid, _ in found.values()} == {(0, 0)}
    folders = {name: stat.S_IMODE(mode) for name, (mode, *_) in found.items() if stat.S_ISDIR(mode)}
    assert set(folders.values()) == {0o755}


def test_nobody_changes_an_installed_file_or_its_folder(image: Path):
    before = state(image)
    assert set(MODES) | {LINK} <= set(before)
    paths = [image, *image.rglob("*")]
    assert holds_for_nobody(lambda: is_shut(paths))
    assert state(image) == before


@pytest.mark.parametrize("name", [*MODES, "etc/vmplace"])
def test_a_file_that_others_may_write_to_is_found(image: Path, name: str):
    (image / name).chmod(0o777)
    assert not holds_for_nobody(lambda: is_shut([image / name]))
