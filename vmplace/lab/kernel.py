"""How is the lab's kernel built, and rebuilt in seconds after a patch changed?

The source and object tree is kept per toolbox, and patched anew by vmplace/lab/patching.py.
"""

import shutil
from pathlib import Path

from vmplace.lab import cache, trees
from vmplace.lab.errors import LabError
from vmplace.lab.patching import apply_series, series
from vmplace.lab.progress import Progress, log_path
from vmplace.lab.toolbox import run_in_tree

SOURCE = "linux-source-6.12"
FRAGMENT = Path(__file__).with_name("kernel.config")


def config_fragment(patches: Path) -> str:
    """Return the config fragment, with the options of the patches (``lab.config``) once there are any."""
    added = patches / "lab.config"
    return FRAGMENT.read_text() + (added.read_text() if series(patches) and added.exists() else "")


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
        apply_series(toolbox, work, SOURCE, patches, log)
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
