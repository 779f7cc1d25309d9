"""How does a patch series get onto a source tree, again and again, without a full rebuild?

Patches are applied to pristine copies of the files they touch, and only files whose content changes are
written, so that the next build compiles just what a patch changed.
"""

import re
import shutil
from pathlib import Path

from lab import cache
from lab.errors import LabError
from lab.toolbox import run_in_tree

_TOUCHED = re.compile(r"^(?:---|\+\+\+) [ab]/(\S+)", re.MULTILINE)


def series(patches: Path) -> list[Path]:
    """Return the patch files that the ``series`` file of a folder names, in order.

    Raises LabError where there is none: without patches
    the kernel lacks what is tried, and the emulator loses guests.
    """
    listing = patches / "series"
    if not listing.is_file():
        raise LabError(
            f"there is no {listing}",
            hint="the lab is built from a checkout of vmplace: pip install --editable ./lab there",
        )
    lines = [line.partition("#")[0].strip() for line in listing.read_text().splitlines()]
    return [patches / line for line in lines if line]


def touched_files(patch_texts: list[str]) -> list[str]:
    """Return the paths, relative to the source tree, that patches create, change or remove."""
    return sorted({path for text in patch_texts for path in _TOUCHED.findall(text)})


def apply_series(toolbox: Path, work: Path, tree: str, patches: list[Path], log: Path) -> list[str]:
    """Bring ``work/tree`` to pristine + patches, writing only files that differ; return those."""
    source, pristine, scratch = work / tree, work / "pristine", work / "scratch"
    new = touched_files([path.read_text() for path in patches])
    before = [str(path.relative_to(pristine)) for path in pristine.rglob("*") if path.is_file()]
    for name in new:
        _keep_pristine(source, pristine, name)
    cache.remove_tree(scratch)
    scratch.mkdir()
    for name in new:
        if (pristine / name).exists():
            _copy(pristine / name, scratch / name)
    for patch in patches:
        shutil.copy(patch, scratch / ".patch")
        run_in_tree(
            toolbox,
            ["patch", "-p1", "--no-backup-if-mismatch", "--fuzz=0", "-i", ".patch"],
            binds={work: Path("/build")},
            cwd="/build/scratch",
            log=log,
        )
    names = sorted({name.removesuffix(".absent") for name in before} | set(new))
    return [
        name
        for name in names
        if _write_if_different(source / name, (scratch if name in new else pristine) / name)
    ]


def _keep_pristine(source: Path, pristine: Path, name: str) -> None:
    """Keep the file as the tarball had it, once; a file that a patch creates is kept as an empty marker."""
    if (pristine / name).exists() or (pristine / f"{name}.absent").exists():
        return
    if (source / name).exists():
        _copy(source / name, pristine / name)
        return
    (pristine / name).parent.mkdir(parents=True, exist_ok=True)
    (pristine / f"{name}.absent").touch()


def _write_if_different(current: Path, wanted: Path) -> bool:
    """Make ``current`` what ``wanted`` is, present or absent; return whether that changed it."""
    if not wanted.exists():
        existed = current.exists()
        current.unlink(missing_ok=True)
        return existed
    if current.exists() and current.read_bytes() == wanted.read_bytes():
        return False
    _copy(wanted, current)
    # The copy carries the old time; make compiles what is newer than its object.
    current.touch()
    return True


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)
