"""What does ``vmplace install`` put where, and how does ``vmplace uninstall`` remove that alone?

A manifest names each file with the digest of what was written, the folders that were made, and whether the
group was.  It is on disk before the first file is, so an installation that was cut short can be removed.

1. A file that is there already is written over only if it is as the manifest says: nobody changed it since.
2. Settings are a person's: they are written where there are none, and never over others.
3. Anything else that is in the way stops the installation before it begins.

Paths are absolute on the host; ``root`` is the folder that stands for "/" (an image that is being made).
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from vmplace.errors import VmplaceError
from vmplace.outside import read_bytes

MANIFEST = Path("/etc/vmplace/installed.json")
STATE = Path("/var/lib/vmplace")
PACKAGED = tuple(
    Path(folder, "systemd/system/vmplace.service") for folder in ("/usr/lib", "/lib", "/usr/local/lib")
)
"""Where a distribution's package has its unit."""
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class InstalledFile:
    """A file, or with ``target`` a link, of an installation."""

    path: Path
    content: bytes = b""
    mode: int = 0o644
    target: str = ""
    is_settings: bool = False

    def digest(self) -> str:
        """Return what ``digest_of`` returns once it is there."""
        return _link_digest(self.target) if self.target else hashlib.sha256(self.content).hexdigest()


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was installed: digests by path, folders in the order in which they were made."""

    files: dict[str, str] = {}
    folders: tuple[str, ...] = ()
    group_made: bool = False


@dataclass(frozen=True)
class Changes:
    """What an installation would do: write these pieces, and leave those paths as they are."""

    to_write: tuple[InstalledFile, ...] = ()
    kept: tuple[Path, ...] = ()
    in_the_way: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Removed:
    """What was removed; ``left`` are files that somebody changed since."""

    removed: tuple[Path, ...] = ()
    left: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Installation:
    """The files of vmplace below ``root``."""

    root: Path = field(default=Path("/"))

    def at(self, path: Path) -> Path:
        """Return where a path of the host is."""
        return self.root / path.relative_to("/")

    def manifest(self) -> Manifest | None:
        """Return what an earlier installation noted, None without one; raises VmplaceError if damaged."""
        path = self.at(MANIFEST)
        try:
            noted: Manifest = msgspec.json.decode(read_bytes(path, MOST_BYTES), type=Manifest)
            if not all(name.startswith("/") for name in (*noted.files, *noted.folders)):
                raise ValueError("a path in it is not absolute")
            return noted
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as err:
            raise VmplaceError(f"{path}: {err}", hint="remove by hand what docs/install.md lists") from err

    def packaged(self) -> Path | None:
        """Return the unit of a distribution's package, None without one."""
        return next((path for path in PACKAGED if self.at(path).exists()), None)

    def changes(self, pieces: Iterable[InstalledFile], noted: Mapping[str, str]) -> Changes:
        """Return what is to be done, by what is there and what an earlier installation noted."""
        to_write, kept, in_the_way = [], [], []
        for piece in pieces:
            there = digest_of(self.at(piece.path))
            if there == piece.digest() or (there is not None and piece.is_settings):
                kept.append(piece.path)
            elif there is None or there == noted.get(str(piece.path)):
                to_write.append(piece)
            else:
                in_the_way.append(piece.path)
        return Changes(tuple(to_write), tuple(kept), tuple(in_the_way))

    def put(self, changes: Changes, before: Manifest, make_group: Callable[[], bool]) -> Manifest:
        """Write the manifest, then the files; ``make_group`` tells whether it made the group."""
        folders = self._missing_folders([MANIFEST, *(piece.path for piece in changes.to_write)])
        digests = {str(piece.path): piece.digest() for piece in changes.to_write}
        manifest = Manifest(
            {**before.files, **digests}, (*before.folders, *map(str, folders)), before.group_made
        )
        for folder in folders:
            with _reported(self.at(folder)):
                self.at(folder).mkdir(exist_ok=True)
                # The umask of who installs is not what others may read.
                self.at(folder).chmod(0o755)
        self._write_manifest(manifest)
        for piece in changes.to_write:
            _put(piece, self.at(piece.path))
        if make_group():
            manifest = msgspec.structs.replace(manifest, group_made=True)
            self._write_manifest(manifest)
        return manifest

    def remove(self, manifest: Manifest, *, even_if_changed: bool) -> Removed:
        """Remove the files that nobody changed, and the folders that are empty then.

        The manifest goes, too, unless files are left: it then names these, for another time.
        """
        removed, left = [], []
        for name, digest in sorted(manifest.files.items()):
            there = digest_of(self.at(Path(name)))
            if there == digest or (there is not None and even_if_changed):
                with _reported(self.at(Path(name))):
                    self.at(Path(name)).unlink()
                removed.append(Path(name))
            elif there is not None:
                left.append(Path(name))
        if left:
            digests = {str(path): manifest.files[str(path)] for path in left}
            self._write_manifest(msgspec.structs.replace(manifest, files=digests))
        else:
            self.at(MANIFEST).unlink()
        for name in reversed(manifest.folders):
            with contextlib.suppress(OSError):
                # Others put something there since.
                self.at(Path(name)).rmdir()
        return Removed(tuple(removed), tuple(left))

    def remove_state(self) -> None:
        """Remove journal and recordings; nothing can be undone after that."""
        shutil.rmtree(self.at(STATE), ignore_errors=True)

    def _missing_folders(self, paths: Iterable[Path]) -> list[Path]:
        parents = {parent for path in paths for parent in path.parents}
        return sorted(parent for parent in parents if not self.at(parent).exists())

    def _write_manifest(self, manifest: Manifest) -> None:
        _put(InstalledFile(MANIFEST, msgspec.json.encode(manifest)), self.at(MANIFEST))


def digest_of(path: Path) -> str | None:
    """Return the digest of a file, or of a link itself; None where there is nothing."""
    try:
        if path.is_symlink():
            return _link_digest(str(path.readlink()))
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
    except OSError as err:
        raise VmplaceError(f"{path} is in the way: {err.strerror}", hint="move it away") from err


def _link_digest(target: str) -> str:
    return f"link to {target}"


def _put(piece: InstalledFile, path: Path) -> None:
    """Write a file whole, or not at all."""
    with _reported(path):
        if piece.target:
            path.unlink(missing_ok=True)
            path.symlink_to(piece.target)
            return
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(piece.content)
                os.fchmod(file.fileno(), piece.mode)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Name the file in an error: the manifest is there, so what was begun can be run again."""
    try:
        yield
    except OSError as err:
        raise VmplaceError(f"{path}: {err.strerror}", hint="mend that, and run it again") from err
