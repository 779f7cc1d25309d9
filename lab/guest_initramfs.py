"""What do guests boot that run other programs beside the payload (stress-ng and the like)?

The payload's own initramfs holds one static program.  This one adds programs of the emulated host's Debian
tree with the libraries that the loader wants for them, and a shell.
"""

import re
import shutil
from pathlib import Path

from lab import cache, trees
from lab.build import LabArtifacts
from lab.errors import LabError
from lab.progress import Progress, log_path
from lab.toolbox import run_in_tree

PROGRAMS = ("/usr/bin/stress-ng", "/usr/bin/busybox")
PACK = (
    "cd /run/out/root && find . | LC_ALL=C sort"
    " | cpio --quiet -o -H newc -R 0:0 | gzip -1n >/run/out/programs.cpio.gz"
)

_LIBRARY = re.compile(r"(/\S+) \(0x")


def programs_initramfs(artifacts: LabArtifacts, progress: Progress) -> Path:
    """Return the larger initramfs: /init is the payload, PROGRAMS are where Debian has them."""
    if artifacts.payload is None:
        raise LabError("the guests' payload was not built", hint="lab/payload has no Makefile")
    payload = artifacts.payload / "payload"
    tree = trees.host_root(progress)
    inputs = {
        "payload": payload.parents[1].name,
        "tree": tree.parent.name,
        "programs": " ".join(PROGRAMS) + PACK,
    }

    def build(folder: Path) -> None:
        log = log_path("guest-initramfs")
        with progress.step("guests' initramfs with programs", log):
            _fill(folder / "root", tree, payload)
            run_in_tree(artifacts.toolbox, ["sh", "-ec", PACK], binds={folder: Path("/run/out")}, log=log)
            cache.remove_tree(folder / "root")

    return cache.artifact("guest-initramfs", inputs, build) / "programs.cpio.gz"


def parse_libraries(ldd: str) -> tuple[str, ...]:
    """Return the files that ldd's output names, each once."""
    return tuple(dict.fromkeys(_LIBRARY.findall(ldd)))


def _fill(root: Path, tree: Path, payload: Path) -> None:
    # Debian's merged /usr: the loader's path and the libraries' are links into it.
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    (root / "dev").mkdir()
    shutil.copy2(payload, root / "init")
    for program in PROGRAMS:
        said = run_in_tree(tree, ["ldd", program], check=False).stdout
        for path in (program, *parse_libraries(said)):
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / path.lstrip("/"), target)
    (root / "usr/bin/sh").symlink_to("busybox")
