"""How do the current package and payload get into a host that was restored from a snapshot?

As a second disk whose content is a tar archive: a disk's content is not part of a snapshot, so each boot
gets what the checkout has now.  It is read past the page cache, which may be as old as the snapshot.
"""

import io
import shutil
import tarfile
from pathlib import Path

import vmplace
from lab import cache
from lab.build import LabArtifacts
from lab.errors import LabError
from lab.toolbox import run_in_tree

DISK_BYTES = 192 << 20
BLOCK_BYTES = 1 << 20
PACKAGE_ROOT = "opt/vmplace"
LAB_FILES = "usr/lib/vmplace-lab"
WRAPPER = """#!/usr/bin/python3
from vmplace.interfaces.entry import main

main()
"""
LAB = Path(__file__).parent
LAB_MODULES = ("__init__.py", "counters_meter.py", "counted.py", "meter_cost.py")
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: vmplace-lab\nVersion: 0.1.0\n",
    "entry_points.txt": "[vmplace.guest_cost]\nmeter = lab.meter_cost:MeterCost\n",
}
SKIPPED = ("__pycache__", ".mypy_cache")


def write_deploy_disk(path: Path, artifacts: LabArtifacts, extra: dict[str, Path]) -> int:
    """Write the disk image and return how many blocks hold the archive.

    ``extra`` maps paths inside to files here.
    """
    package = compiled_package(artifacts.toolbox)
    files = {
        f"{PACKAGE_ROOT}/{name.relative_to(package)}": name for name in package.rglob("*") if name.is_file()
    }
    files[f"{LAB_FILES}/bzImage"] = artifacts.guest_kernel
    if artifacts.payload:
        files[f"{LAB_FILES}/payload.cpio.gz"] = artifacts.payload / "payload.cpio.gz"
        files["usr/local/bin/vmp-payload"] = artifacts.payload / "payload"
        for name in ("vmp-talk", "vmp-small-pages"):
            files[f"usr/local/bin/{name}"] = artifacts.payload / name
    if artifacts.meter:
        files["usr/local/bin/vmp-meter"] = artifacts.meter / "vmp-meter"
    files |= {name.lstrip("/"): source for name, source in extra.items()}
    with tarfile.open(path, "w") as archive:
        for name, source in sorted(files.items()):
            archive.add(source, name, recursive=False)
        for name in ("usr/local/bin/vmplace", f"{PACKAGE_ROOT}/bin/vmplace"):
            _add_text(archive, name, WRAPPER, mode=0o755)
        _add_text(archive, "usr/lib/python3/dist-packages/vmplace.pth", f"/{PACKAGE_ROOT}\n", mode=0o644)
    size = path.stat().st_size
    if size > DISK_BYTES:
        raise LabError(
            f"the deploy disk holds {DISK_BYTES >> 20} MiB, {size >> 20} MiB are to go there",
            hint="bring fewer files, or raise DISK_BYTES in lab/deploy.py",
        )
    with path.open("ab") as disk:
        disk.truncate(DISK_BYTES)
    return -(-size // BLOCK_BYTES)


def compiled_package(toolbox: Path) -> Path:
    """Return a folder with the packages, compiled outside: an emulated CPU is slow at it.

    Of the lab's own that is what reads the meter, with the entry points by which vmplace finds it.
    """
    package = Path(vmplace.__file__).parent
    of_lab = [LAB / name for name in LAB_MODULES]
    inputs = {
        "toolbox": toolbox.parent.name,
        "content": cache.content_hash([package, *of_lab]),
        "entry_points": METADATA["entry_points.txt"],
    }

    def build(folder: Path) -> None:
        out = folder / "out"
        shutil.copytree(package, out / "vmplace", ignore=shutil.ignore_patterns(*SKIPPED))
        (out / "lab").mkdir()
        for path in of_lab:
            shutil.copy(path, out / "lab")
        (out / "vmplace_lab.dist-info").mkdir()
        for name, text in METADATA.items():
            (out / "vmplace_lab.dist-info" / name).write_text(text)
        # Unchecked: the archive need not keep the sources' times for the compiled files to be used.
        compile_all = ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
        # The path that tracebacks show is the one inside the host.
        where = [*("-s", "/run/package", "-p", f"/{PACKAGE_ROOT}"), "/run/package"]
        run_in_tree(toolbox, [*compile_all, *where], binds={out: Path("/run/package")})

    return cache.artifact("package", inputs, build) / "out"


def _add_text(archive: tarfile.TarFile, name: str, text: str, *, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text.encode()), mode
    archive.addfile(entry, io.BytesIO(text.encode()))


def unpack_command(blocks: int) -> str:
    """Return the shell command that unpacks the disk inside the host."""
    return (
        f"rm -rf /{PACKAGE_ROOT} /{LAB_FILES}; "
        f"dd if=/dev/vdb bs={BLOCK_BYTES} count={blocks} iflag=direct status=none"
        " | tar -x -C / --no-same-owner"
    )
