"""Would a QEMU maintainer take the series?  It applies, each step builds, checkpatch and tests are content.

The steps are built one after the other in a tree of their own: each compiles what its patch changed.
"""

import re
import shutil
import subprocess
from pathlib import Path

from lab import cache, trees
from lab.errors import LabError
from lab.patching import series, touched_files
from lab.progress import Progress, log_path
from lab.qemu import BINARY, FIRMWARE, TREE, compile_qemu
from lab.toolbox import run_in_tree

TABLES = ("target/i386/tcg/decode-new.c.inc",)
"""Their columns are aligned, beyond what checkpatch allows."""
_STYLE_ERROR = re.compile(r"^ERROR: .*(?:\n#\d+: (?:FILE: (\S+?):\d+:)?)?", re.MULTILINE)
_QTEST = re.compile(r"(tests/qtest/[a-z0-9-]+-test)\.c")
_TCG_TEST = re.compile(r"tests/tcg/x86_64/system/([a-z0-9-]+)\.c")


def check_qemu_patches(progress: Progress, patches: Path) -> None:
    """Raise LabError for the first thing that is not as it ought to be."""
    toolbox = trees.compilers(progress)
    work = cache.artifact_dir("qemu-check", {"toolbox": toolbox.parent.name})
    files = series(patches)
    with cache.locked(work.name):
        compile_qemu(toolbox, work, [], progress)
        _checkpatch(work / TREE, files, progress)
        for count in range(1, len(files) + 1):
            compile_qemu(toolbox, work, files[:count], progress)
        names = touched_files([path.read_text() for path in files])
        _run_qtests(toolbox, work, names, progress)
        _run_tcg_tests(toolbox, work, names, progress)


def _checkpatch(source: Path, files: list[Path], progress: Progress) -> None:
    if shutil.which("perl") is None:
        raise LabError("checkpatch needs perl", hint="apt-get install perl")
    with progress.step("qemu: checkpatch"):
        for path in files:
            argv = ["perl", str(source / "scripts/checkpatch.pl"), "--no-tree", str(path)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=source)
            errors = style_errors(done.stdout) if "total: " in done.stdout else [done.stderr.strip()]
            if errors:
                reported = "\n".join(errors)
                raise LabError(f"checkpatch on {path.name}:\n{reported}", hint="mend the patch")


def style_errors(reported: str) -> list[str]:
    """Return the errors of checkpatch's long output; warnings are none, nor is what all of a table does."""
    return [found[0] for found in _STYLE_ERROR.finditer(reported) if found[1] not in TABLES]


def _run_qtests(toolbox: Path, work: Path, names: list[str], progress: Progress) -> None:
    tests = [match[1] for name in names if (match := _QTEST.fullmatch(name))]
    firmware = " ".join(f"-L {folder}" for folder in FIRMWARE)
    environment = ["env", f"QTEST_QEMU_BINARY=./{BINARY} {firmware}"]
    log = log_path("qtests")
    with progress.step(f"qemu: {len(tests)} qtests", log):
        for argv in (["ninja", *tests], *([*environment, f"./{test}"] for test in tests)):
            run_in_tree(toolbox, argv, binds={work: Path("/build")}, cwd="/build/build", log=log)


def _run_tcg_tests(toolbox: Path, work: Path, names: list[str], progress: Progress) -> None:
    tests = [f"run-{match[1]}" for name in names if (match := _TCG_TEST.fullmatch(name))]
    firmware = " ".join(f"-L {folder}" for folder in FIRMWARE)
    # The machine that QEMU takes by default is not built.
    emulator = f"QEMU=/build/build/{BINARY} -machine q35 -nodefaults {firmware}"
    # -rR as QEMU's own Makefile has it: a rule that make knows would come before the tests'.
    argv = ["make", "-rR", "-C", "tests/tcg/x86_64-softmmu", f"SRC_PATH=/build/{TREE}", emulator, *tests]
    log = log_path("tcg-tests")
    with progress.step(f"qemu: {len(tests)} TCG tests", log):
        run_in_tree(toolbox, argv, binds={work: Path("/build")}, cwd="/build/build", log=log)
