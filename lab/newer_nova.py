"""Which Nova tells vmplace of a flavour's extra specs?  From 2025.2 (32.0) on; Debian 13 has 31.0.

Nova 31 writes a flavour's name and size into a domain's XML, and no extra specs.  So in the trees of a
compute node and of the services outside, the Python packages of Nova, and of two libraries that it needs
newer, are replaced.  Units, users, settings and all other libraries stay Debian's.
"""

import subprocess
import sys
from pathlib import Path

from lab import cache
from lab.errors import LabCommandError
from lab.progress import Progress, log_path
from lab.toolbox import run_in_tree

WHEELS = ("nova==32.0.0", "oslo.service==4.3.0", "os-traits==3.5.0")
REPLACED = "nova nova-*-info oslo_service oslo.service-*-info oslo_service-*-info os_traits os_traits-*-info"
PACKAGES = "/usr/lib/python3/dist-packages"
REPLACE = f"""cd {PACKAGES}
rm -rf {REPLACED}
for wheel in /run/wheels/*.whl; do python3 -m zipfile -e "$wheel" .; done
python3 -m compileall -q nova oslo_service os_traits
"""


def newer_nova(tree: Path, progress: Progress) -> Path:
    """Return the tree with the newer Nova in place of Debian's."""
    name = f"newer-{tree.parent.name.rpartition('-')[0]}"
    inputs = {"tree": tree.parent.name, "wheels": " ".join(WHEELS), "replace": REPLACE}

    def build(folder: Path) -> None:
        log = log_path(name)
        with progress.step(f"{name}: packages", log):
            _download(folder / "wheels", log)
            subprocess.run(["cp", "-a", str(tree), str(folder / "tree")], check=True)
            binds = {folder / "wheels": Path("/run/wheels")}
            run_in_tree(folder / "tree", ["sh", "-ec", REPLACE], binds=binds, log=log)

    return cache.artifact(name, inputs, build) / "tree"


def _download(folder: Path, log: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    ran = subprocess.run([*command, *WHEELS], capture_output=True, text=True, check=False)
    log.write_text(ran.stdout + ran.stderr)
    if ran.returncode:
        raise LabCommandError("pip download", returncode=ran.returncode, output=ran.stderr, log=log)
