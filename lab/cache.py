"""Where do built things live, and when may one be used again?

An artifact is a folder ``<cache>/<name>-<hash of all its inputs>``.  It is built beside its final
place and renamed when complete, under a lock, so that a folder that exists is complete and two
builders never meet.  What a killed build left behind has no lock holder and is removed at the next start.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from lab.errors import LabError

KEY_LENGTH = 12


def cache_root() -> Path:
    """Return the cache folder: $VMPLACE_CACHE, else vmplace under the user's cache folder."""
    chosen = os.environ.get("VMPLACE_CACHE")
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vmplace"


def key_of(inputs: Mapping[str, str]) -> str:
    """Return the short hash that names an artifact made from these inputs."""
    text = json.dumps(dict(inputs), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def content_hash(paths: Iterable[Path]) -> str:
    """Return a hash over names and contents of files, and of all files in folders."""
    digest = hashlib.sha256()
    for top in paths:
        files = [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file())
        for path in files:
            if "__pycache__" in path.parts:
                continue
            digest.update(f"{path.relative_to(top.parent)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def artifact_dir(name: str, inputs: Mapping[str, str]) -> Path:
    """Return where the artifact is once it is built; a folder that exists there is complete."""
    return cache_root() / f"{name}-{key_of(inputs)}"


def artifact(name: str, inputs: Mapping[str, str], build: Callable[[Path], None]) -> Path:
    """Return the artifact's folder, calling ``build(folder)`` first if it is not in the cache.

    ``build`` fills an empty folder; if it raises, nothing is kept.
    """
    final = artifact_dir(name, inputs)
    if _found(final):
        return final
    with locked(final.name):
        if _found(final):
            return final
        temp = cache_root() / "tmp" / final.name
        remove_tree(temp)
        temp.mkdir(parents=True)
        try:
            build(temp)
            (temp / "inputs.json").write_text(json.dumps(dict(inputs), indent=1, sort_keys=True) + "\n")
            temp.rename(final)
        except BaseException:
            remove_tree(temp)
            raise
    return final


def _found(final: Path) -> bool:
    """Return whether the artifact is there; its time becomes that of its last use."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(final)
        return True
    return False


@contextlib.contextmanager
def locked(name: str, *, wait: bool = True, shared: bool = False) -> Iterator[None]:
    """Hold the lock of that name; without ``wait`` raise BlockingIOError if another process has it.

    Any number may hold it ``shared``.  The kernel drops the lock with the process, so a crash leaves none.
    """
    folder = cache_root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("a") as handle:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        yield


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """Make a folder for one run of a machine, gone with the block; its lock tells others that we live."""
    (cache_root() / "run").mkdir(parents=True, exist_ok=True)
    run = Path(tempfile.mkdtemp(dir=cache_root() / "run", prefix=f"{os.getpid()}-"))
    with locked(run.name):
        try:
            yield run
        finally:
            remove_tree(run)
            (cache_root() / "locks" / run.name).unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a folder without ever crossing into another file system (a mount left by someone else)."""
    if path.exists():
        subprocess.run(["rm", "-rf", "--one-file-system", str(path)], check=True)


def remove_stale() -> list[Path]:
    """Remove the leftovers of killed builds and killed machines; return what was removed."""
    removed = []
    for folder in ("tmp", "run"):
        for path in sorted((cache_root() / folder).glob("*")):
            with contextlib.suppress(BlockingIOError), locked(path.name, wait=False):
                remove_tree(path)
                removed.append(path)
    return removed


def prune(keep: int = 3) -> list[Path]:
    """Remove all but the last used artifacts of each name, unless the cache is in use; return the removed.

    A snapshot goes with its parent, whose disk it continues: the parent built again is another disk.
    """
    by_name: dict[str, list[Path]] = {}
    removed = []
    with contextlib.suppress(BlockingIOError), locked("users", wait=False):
        for path in sorted(cache_root().glob("*-*"), key=lambda path: path.stat().st_mtime, reverse=True):
            by_name.setdefault(path.name.rpartition("-")[0], []).append(path)
        for path in (path for paths in by_name.values() for path in paths[keep:]):
            remove_tree(path)
            removed.append(path)
        while orphans := [path for path in cache_root().glob("snapshot-*") if _is_orphan(path)]:
            for path in orphans:
                remove_tree(path)
            removed += orphans
    return removed


def _is_orphan(snapshot: Path) -> bool:
    inputs = json.loads((snapshot / "inputs.json").read_text())
    return "parent" in inputs and not (cache_root() / inputs["parent"]).is_dir()


def in_use() -> contextlib.AbstractContextManager[None]:
    """Keep ``clean`` from removing artifacts while the block runs."""
    return locked("users", shared=True)


def clean(*, everything: bool) -> list[Path]:
    """Remove snapshots and leftovers, or with ``everything`` the whole cache; return what was removed.

    Raises LabError while a build or an emulated host uses the cache.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked("users", wait=False))
        except BlockingIOError as err:
            hint = "end it first; `pgrep -af qemu-system` shows emulated hosts"
            raise LabError("a build or an emulated host is using the cache", hint=hint) from err
        removed = remove_stale()
        patterns = ("*-*", "logs", "ccache") if everything else ("snapshot-*",)
        for path in sorted(path for pattern in patterns for path in cache_root().glob(pattern)):
            remove_tree(path)
            removed.append(path)
    return removed
