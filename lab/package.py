"""How is the Debian package made on a machine that may be no Debian 13?

In a tree of the lab's own: trixie, with Debian's tools.  What git tracks is built, nothing else; lintian's
warnings fail it.  The version has the commit's time, so that apt takes the package of a later one for newer.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from lab import trees
from lab.errors import LabError
from lab.progress import Progress, log_path
from lab.toolbox import run_in_tree

CHECKOUT = Path(__file__).parents[1]
FAIL_ON = "error,warning"


def build_package(progress: Progress, out: Path) -> tuple[Path, ...]:
    """Build and check the package; return the .deb files in ``out``, in place of those of earlier builds.

    Raises LabError.
    """
    tree, log = trees.packaging(progress), log_path("package")
    with tempfile.TemporaryDirectory(prefix="vmplace-deb-") as scratch:
        work = Path(scratch)
        copy_tracked(CHECKOUT, work / "vmplace")
        changelog = work / "vmplace/debian/changelog"
        changelog.write_text(versioned(changelog.read_text(), commit_mark(CHECKOUT)))
        binds = {work: Path("/build")}
        with progress.step("package: build", log):
            build = ["dpkg-buildpackage", "-b", "-us", "-uc"]
            run_in_tree(tree, build, binds=binds, cwd="/build/vmplace", log=log)
        with progress.step("package: lintian", log):
            check = ["sh", "-ec", f"lintian --allow-root --fail-on {FAIL_ON} *.changes"]
            run_in_tree(tree, check, binds=binds, cwd="/build", log=log)
        out.mkdir(parents=True, exist_ok=True)
        made = [path for path in sorted(work.glob("*.deb")) if "-dbgsym_" not in path.name]
        for path in made:
            _remove_earlier(out, path.name.partition("_")[0])
        return tuple(Path(shutil.copy(path, out)) for path in made)


def _remove_earlier(out: Path, package: str) -> None:
    for path in out.glob(f"{package}_*.deb"):
        path.unlink()


def commit_mark(checkout: Path) -> str:
    """Return time (UTC) and id of the last commit, as a part of a version; raises LabError without git."""
    command = ["git", "-C", str(checkout), "log", "-1", "--abbrev=8"]
    command += ["--format=git%cd.%h", "--date=format-local:%Y%m%d%H%M%S"]
    env = os.environ | {"TZ": "UTC"}
    asked = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if asked.returncode:
        raise LabError(f"{checkout} has no commit", hint="git clone it: the package is built from that")
    return asked.stdout.strip()


def versioned(changelog: str, mark: str) -> str:
    """Return Debian's changelog with ``mark`` added to the newest version."""
    return re.sub(r"\A(\S+ \([^)]+)\)", rf"\1+{mark})", changelog)


def copy_tracked(checkout: Path, target: Path) -> None:
    """Copy the files that git tracks; raises LabError where there is no git."""
    listing = subprocess.run(["git", "-C", str(checkout), "ls-files", "-z"], capture_output=True, check=False)
    if listing.returncode:
        raise LabError(f"{checkout} is no git checkout", hint="git clone it: the package is built from that")
    for name in listing.stdout.decode().split("\0")[:-1]:
        source = checkout / name
        if not (source.exists() or source.is_symlink()):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / name, follow_symlinks=False)
