"""How is the lab's kernel built, and rebuilt in seconds after a patch changed?

The source and object tree is kept per toolbox.  Patches are applied to pristine copies of the files they
touch, and only files whose content changes are written, so that make compiles just what a patch changed.
"""

import re
import shutil
from pathlib import Path

from vmplace.lab import cache, trees
from vmplace.lab.errors import LabError
from vmplace.lab.progress import Progress, log_path
from vmplace.lab.toolbox import run_in_tree

SOURCE = "linux-source-6.12"
FRAGMENT = Path(__file__).with_name("kernel.config")
_TOUCHED = re.compile(r"^(?:---|\+\+\+) [ab]/(\S+)", re.MULTILINE)


def series(patches: Path) -> list[Path]:
    """Return the patch files that the ``series`` file of a folder names, in order; none if it is absent."""
    listing = patches / "series"
    if not listing.exists():
        return []
    lines = [line.partition("#")[0].strip() for line in listing.read_text().splitlines()]
    return [patches / line for line in lines if line]


def config_fragment(patches: Path) -> str:
    """Return the config fragment, with the options of the patches (``lab.config``) once there are any."""
    added = patches / "lab.config"
    return FRAGMENT.read_text() + (added.read_text() if series(patches) and added.exists() else "")


def touched_files(patch_texts: list[str]) -> list[str]:
    """Return the paths, relative to the source tree, that patches create, change or remove."""
    return sorted({path for text in patch_texts for path in _TOUCHED.findall(text)})


def wanted_options(fragment: str) -> dict[str, str]:
    """Parse a config fragment into option → value, where ``n`` means off."""
    lines = [line for line in fragment.splitlines() if line.startswith("CONFIG_")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def refused_options(wanted: dict[str, str], config: str) -> list[str]:
    """Return the wanted options that kconfig did not grant, as ``NAME=value``."""
    got = wanted_options(config)
    return [f"{name}={value}" for name, value in wanted.items() if got.get(name, "n") != value]


def build_kernel(progress: Progress, *, patches: Path) -> Path:
    """Return the bzImage of the Debian source plus the patch series plus the config fragment."""
    toolbox = trees.toolbox(progress)
    fragment = config_fragment(patches)
    inputs = {
        "toolbox": toolbox.parent.name,
        "config": fragment,
        "patches": "\n".join(path.read_text() for path in series(patches)),
    }

    def build(folder: Path) -> None:
        work = cache.artifact_dir("kernel-tree", {"toolbox": toolbox.parent.name})
        with cache.locked(work.name):
            _compile(toolbox, work, series(patches), fragment, progress)
            shutil.copy(work / SOURCE / "arch/x86/boot/bzImage", folder / "bzImage")
            shutil.copy(work / SOURCE / ".config", folder / "config")

    return cache.artifact("kernel", inputs, build) / "bzImage"


def _compile(toolbox: Path, work: Path, patches: list[Path], fragment: str, progress: Progress) -> None:
    log = log_path("kernel")
    source = work / SOURCE
    if not (work / "unpacked").exists():
        with progress.step("kernel: unpack", log):
            cache.remove_tree(work)
            work.mkdir(parents=True)
            _make(
                toolbox, work, ["tar", "-C", "/build", "-xf", f"/usr/src/{SOURCE}.tar.xz"], log, cwd="/build"
            )
            (work / "unpacked").touch()
    with progress.step(f"kernel: apply {len(patches)} patches", log):
        apply_series(toolbox, work, patches, log)
    with progress.step("kernel: compile", log):
        (work / "fragment").write_text(fragment)
        _make(toolbox, work, ["make", "allnoconfig", "KCONFIG_ALLCONFIG=/build/fragment"], log)
        refused = refused_options(wanted_options(fragment), (source / ".config").read_text())
        if refused:
            raise LabError(
                f"kconfig refused {', '.join(refused)}", hint=f"check their dependencies in {FRAGMENT}"
            )
        _make(toolbox, work, ["sh", "-c", "exec make -j$(nproc) bzImage"], log)


def _make(toolbox: Path, work: Path, argv: list[str], log: Path, cwd: str = f"/build/{SOURCE}") -> None:
    run_in_tree(toolbox, argv, binds={work: Path("/build")}, cwd=cwd, log=log)


def apply_series(toolbox: Path, work: Path, patches: list[Path], log: Path) -> list[str]:
    """Bring the source tree to pristine + patches, writing only files that differ; return those."""
    source, pristine, scratch = work / SOURCE, work / "pristine", work / "scratch"
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
