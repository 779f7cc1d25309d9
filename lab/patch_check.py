"""Would a kernel maintainer take the series?  It applies, checkpatch is silent, every step builds.

The steps are built in a source tree of their own, outside of it (O=), an object tree per variant, so that a
step compiles only what its patch changed.  What built once is not built again, as long as the patches up to
it are the same but for those that add to no kernel: tests and documentation.  The rarer variants come last,
at each step too.  Quick: the directories the patches touch instead of whole kernels, and the rarer variants
only with all patches applied.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab import cache, trees
from lab.errors import LabError
from lab.kernel import FRAGMENT, SOURCE
from lab.patching import apply_series, series, touched_files
from lab.progress import Progress, log_path
from lab.toolbox import run_in_tree

# Patches of ours add files; whether MAINTAINERS knows their directories, checkpatch cannot tell.
CHECKPATCH = ("--terse", "--strict", "--ignore", "FILE_PATH_CHANGES")
# mm/ whole: its files that a patch adds are no targets before that patch.
QUICK_TARGETS = ("arch/x86/kvm/", "mm/", "kernel/ptrace.o", "kernel/sched/")
FULL_TARGETS = ("bzImage", "modules")
NEVER_BUILT = ("Documentation/", "tools/", "MAINTAINERS")


@dataclass(frozen=True)
class Variant:
    """A kernel configuration, as options on top of the lab's."""

    name: str
    options: tuple[str, ...]

    @property
    def fragment(self) -> str:
        """Return the config fragment; the last word on an option counts."""
        return FRAGMENT.read_text() + "".join(f"CONFIG_{option}\n" for option in self.options)


MAIN_VARIANTS = (Variant("on", ("KVM_PLACEMENT=y",)), Variant("off", ("KVM_PLACEMENT=n",)))
MODULES = ("KVM=m", "KVM_AMD=m", "KVM_INTEL=m")
RARE_VARIANTS = (
    Variant("on-module", ("KVM_PLACEMENT=y", *MODULES)),
    Variant("off-module", ("KVM_PLACEMENT=n", *MODULES)),
    Variant("on-amd", ("KVM_PLACEMENT=y", "KVM_INTEL=n")),
    Variant("on-intel", ("KVM_PLACEMENT=y", "KVM_AMD=n")),
)


def check_patches(progress: Progress, patches: Path, *, quick: bool, last_only: bool = False) -> None:
    """Raise LabError for the first thing that is not as it ought to be."""
    toolbox = trees.toolbox(progress)
    work = cache.artifact_dir("patch-check", {"toolbox": toolbox.parent.name})
    files = series(patches)
    targets = QUICK_TARGETS if quick else FULL_TARGETS
    with cache.locked(work.name):
        _unpack(toolbox, work, progress)
        _checkpatch(work / SOURCE, files, progress)
        last = len(files)
        for variants, first in ((MAIN_VARIANTS, 1), (RARE_VARIANTS, last if quick else 1)):
            for count in range(last if last_only else first, last + 1):
                _check_step(progress, toolbox, work, files[:count], variants, targets)


def _check_step(  # noqa: PLR0913  (what a step is made of)
    progress: Progress,
    toolbox: Path,
    work: Path,
    files: list[Path],
    variants: tuple[Variant, ...],
    targets: tuple[str, ...],
) -> None:
    """Build what these patches come to in the variants that were not built yet."""
    marks = {one: _mark(work, files, one, targets) for one in variants}
    missing = [one for one, mark in marks.items() if not mark.exists()]
    if not missing:
        return
    step = f"{len(files):02d}"
    log = log_path(f"patch-check-{step}")
    with progress.step(f"patches: apply {step}", log):
        apply_series(toolbox, work, SOURCE, files, log)
    for variant in missing:
        with progress.step(f"patches: build {step} {variant.name}", log):
            _build(toolbox, work, variant, targets, log)
        marks[variant].touch()


def _mark(work: Path, files: list[Path], variant: Variant, targets: tuple[str, ...]) -> Path:
    """Return the file that is there once the source with these patches was built so."""
    inputs = {
        "patches": cache.content_hash([path for path in files if _is_built(path)]),
        "fragment": variant.fragment,
        "targets": " ".join(targets),
    }
    return work / f"built-{cache.key_of(inputs)}"


def _is_built(patch: Path) -> bool:
    """Return whether a patch may change what is built."""
    touched = touched_files([patch.read_text()])
    return not touched or any(not name.startswith(NEVER_BUILT) for name in touched)


def _unpack(toolbox: Path, work: Path, progress: Progress) -> None:
    if (work / "unpacked").exists():
        return
    with progress.step("patches: unpack the source", log := log_path("patch-check")):
        cache.remove_tree(work)
        work.mkdir(parents=True)
        argv = ["tar", "-C", "/build", "-xf", f"/usr/src/{SOURCE}.tar.xz"]
        run_in_tree(toolbox, argv, binds={work: Path("/build")}, cwd="/build", log=log)
        (work / "unpacked").touch()


def _checkpatch(source: Path, files: list[Path], progress: Progress) -> None:
    if shutil.which("perl") is None:
        raise LabError("checkpatch needs perl", hint="apt-get install perl")
    with progress.step("patches: checkpatch"):
        for path in files:
            argv = ["perl", str(source / "scripts/checkpatch.pl"), *CHECKPATCH, str(path)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=source)
            if done.returncode:
                raise LabError(f"checkpatch on {path.name}:\n{done.stdout.strip()}", hint="mend the patch")


def _build(toolbox: Path, work: Path, variant: Variant, targets: tuple[str, ...], log: Path) -> None:
    objects = work / f"objects-{variant.name}"
    unfinished = objects / "unfinished"
    if unfinished.exists():
        # A build that was killed leaves half-written files, which make stumbles over.
        cache.remove_tree(objects)
    objects.mkdir(exist_ok=True)
    unfinished.touch()
    (objects / "fragment").write_text(variant.fragment)
    make = ["make", "KCFLAGS=-Werror", f"O=/build/{objects.name}"]
    for argv in (
        [*make, "allnoconfig", f"KCONFIG_ALLCONFIG=/build/{objects.name}/fragment"],
        [*make, "-j2", "prepare"],
        # By themselves: with others kbuild builds directories one by one, by a single job.
        [*make, "-j2", *targets],
    ):
        run_in_tree(toolbox, argv, binds={work: Path("/build")}, cwd=f"/build/{SOURCE}", log=log)
    unfinished.unlink()
