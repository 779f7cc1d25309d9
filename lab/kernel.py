"""How is the lab's kernel built, and rebuilt in seconds after a patch changed?

The source and object tree is kept per toolbox and flavour, and patched anew by lab/patching.py.
There are three flavours: with the series, without it (stock), with it and the kernel's own checks (debug).
"""

import os
import shutil
from pathlib import Path
from typing import Literal, get_args

from lab import cache, trees
from lab.errors import LabError
from lab.patching import apply_series, series
from lab.progress import Progress, log_path
from lab.toolbox import compile_in_tree, run_in_tree

Flavour = Literal["patched", "stock", "debug"]
FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)
FLAVOUR_VARIABLE = "VMPLACE_KERNEL"
SOURCE = "linux-source-6.12"
FRAGMENT = Path(__file__).with_name("kernel.config")
DEBUG_FRAGMENT = Path(__file__).with_name("kernel.debug.config")


def chosen_flavour() -> Flavour:
    """Return what $VMPLACE_KERNEL says, "patched" without it; raises LabError for another word."""
    word = os.environ.get(FLAVOUR_VARIABLE, "patched")
    for flavour in FLAVOURS:
        if flavour == word:
            return flavour
    raise LabError(f"{FLAVOUR_VARIABLE} is '{word}'", hint=f"known: {', '.join(FLAVOURS)}")


def config_fragment(patches: Path, flavour: Flavour = "patched") -> str:
    """Return the config fragment; the last word on an option counts."""
    parts = [FRAGMENT]
    if flavour != "stock" and series(patches) and (added := patches / "lab.config").exists():
        parts.append(added)
    if flavour == "debug":
        parts.append(DEBUG_FRAGMENT)
    return "".join(part.read_text() for part in parts)


def wanted_options(fragment: str) -> dict[str, str]:
    """Parse a config fragment into option → value, where ``n`` means off."""
    lines = [line for line in fragment.splitlines() if line.startswith("CONFIG_")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def refused_options(wanted: dict[str, str], config: str) -> list[str]:
    """Return the wanted options that kconfig did not grant, as ``NAME=value``."""
    got = wanted_options(config)
    return [f"{name}={value}" for name, value in wanted.items() if got.get(name, "n") != value]


def kernel_tree(toolbox: Path, flavour: Flavour) -> Path:
    """Return where source and objects of a flavour are kept, to be locked by its name while in use."""
    apart = {} if flavour == "patched" else {"flavour": flavour}
    return cache.artifact_dir("kernel-tree", {"toolbox": toolbox.parent.name} | apart)


def build_kernel(progress: Progress, *, patches: Path, flavour: Flavour = "patched") -> Path:
    """Return the bzImage of the Debian source plus the patch series plus the config fragment."""
    toolbox = trees.toolbox(progress)
    fragment = config_fragment(patches, flavour)
    files = [] if flavour == "stock" else series(patches)
    inputs = {
        "toolbox": toolbox.parent.name,
        "config": fragment,
        "patches": "\n".join(path.read_text() for path in files),
    }

    def build(folder: Path) -> None:
        work = kernel_tree(toolbox, flavour)
        with cache.locked(work.name):
            log = log_path("kernel" if flavour == "patched" else f"kernel-{flavour}")
            prepare_source(toolbox, work, files, progress, log)
            _compile(trees.compilers(progress), work, fragment, progress, log)
            shutil.copy(work / SOURCE / "arch/x86/boot/bzImage", folder / "bzImage")
            shutil.copy(work / SOURCE / ".config", folder / "config")

    return cache.artifact("kernel", inputs, build) / "bzImage"


def prepare_source(toolbox: Path, work: Path, patches: list[Path], progress: Progress, log: Path) -> None:
    """Have the source with exactly these patches in ``work``, whose lock the caller holds."""
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


def _compile(toolbox: Path, work: Path, fragment: str, progress: Progress, log: Path) -> None:
    with progress.step("kernel: compile", log):
        (work / "fragment").write_text(fragment)
        _make(toolbox, work, ["make", "allnoconfig", "KCONFIG_ALLCONFIG=/build/fragment"], log)
        refused = refused_options(wanted_options(fragment), (work / SOURCE / ".config").read_text())
        if refused:
            raise LabError(
                f"kconfig refused {', '.join(refused)}", hint=f"check their dependencies in {FRAGMENT}"
            )
        command = ["sh", "-c", "exec make -j$(nproc) bzImage"]
        compile_in_tree(toolbox, command, binds={work: Path("/build")}, cwd=f"/build/{SOURCE}", log=log)


def _make(toolbox: Path, work: Path, argv: list[str], log: Path, cwd: str = f"/build/{SOURCE}") -> None:
    run_in_tree(toolbox, argv, binds={work: Path("/build")}, cwd=cwd, log=log)
