"""What must be built before an emulated host can boot, and can this machine do it?"""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab import cache, trees
from lab.errors import LabError
from lab.kernel import Flavour, build_kernel, chosen_flavour
from lab.progress import Progress, log_path
from lab.qemu import build_qemu
from lab.rootfs import rootfs_image
from lab.toolbox import kill_started, run_in_tree

GIB = 1 << 30
# Trees 3 GB, kernel and QEMU sources and objects 4 GB, what they compiled at most 2 GB, images and snapshots
# 2 GB; measured, with some room.
BUILD_DISK_BYTES = 15 * GIB
# gcc on two CPUs and mke2fs stay below this.
BUILD_MEMORY_BYTES = 2 * GIB
NEEDED_COMMANDS = {
    "debootstrap": "debootstrap",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "nsenter": "util-linux",
    "apt-get": "apt",
    "cp": "coreutils",
}
HERE = Path(__file__).parent


@dataclass(frozen=True)
class LabArtifacts:
    """The built parts; ``meter`` and ``payload`` are the output folders of their Makefiles.

    ``kernel`` is the emulated host's, ``guest_kernel`` that of the Linux guests in it: the same, unless the
    host's has checks that would only slow the guests down.
    """

    toolbox: Path
    qemu: Path
    kernel: Path
    guest_kernel: Path
    rootfs_image: Path
    meter: Path | None
    payload: Path | None

    @property
    def plugin(self) -> Path | None:
        """Return the meter plugin for QEMU."""
        return self.meter / "libvmpmeter.so" if self.meter else None

    @property
    def guest_initramfs(self) -> Path | None:
        """Return the initramfs of the guests' payload."""
        return self.payload / "payload.cpio.gz" if self.payload else None


def patches_folder(name: str) -> Path:
    """Return a patch folder of the checkout; what is installed elsewhere has none (patching.series)."""
    return HERE.parent / name


def available_memory_bytes() -> int:
    """Return the memory that can be had without swapping, from /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise LabError("/proc/meminfo has no MemAvailable", hint="mount proc on /proc; Linux has it since 3.14")


def check_machine(*, disk_bytes: int, memory_bytes: int) -> None:
    """Raise LabError, with the numbers and the cure, if this machine cannot build or run the lab."""
    if os.geteuid() != 0:
        raise LabError("the lab needs root, for chroot and mounts", hint="run the same command with sudo")
    missing = sorted({package for command, package in NEEDED_COMMANDS.items() if not shutil.which(command)})
    if missing:
        raise LabError(f"not installed: {', '.join(missing)}", hint=f"apt-get install {' '.join(missing)}")
    root = cache.cache_root()
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if free < disk_bytes:
        raise LabError(
            f"{free / GIB:.1f} GiB free in {root}, {disk_bytes / GIB:.1f} GiB needed",
            hint="free some, `vmplace lab clean --all`, or point VMPLACE_CACHE to another file system",
        )
    available = available_memory_bytes()
    if available < memory_bytes:
        raise LabError(
            f"{available / GIB:.1f} GiB of memory available, {memory_bytes / GIB:.1f} GiB needed",
            hint="end other programs, or take a topology with less memory",
        )


def build_all(progress: Progress, flavour: Flavour | None = None) -> LabArtifacts:
    """Return all parts, building what the cache does not have: kernel, QEMU and the host's packages together.

    ``flavour`` is the kernel's, by default that of the environment (kernel.py).
    """
    for path in cache.prune():
        progress.note(f"removed what is not used any more: {path.name}")
    with cache.in_use():
        return _build_all(progress, flavour or chosen_flavour())


def _build_all(progress: Progress, flavour: Flavour) -> LabArtifacts:
    cold = not any(cache.cache_root().glob("kernel-tree-*"))
    check_machine(disk_bytes=BUILD_DISK_BYTES if cold else 2 * GIB, memory_bytes=BUILD_MEMORY_BYTES)
    for path in cache.remove_stale():
        progress.note(f"removed what a killed run left: {path.name}")
    toolbox, patches = trees.toolbox(progress), patches_folder("kvm-patches")
    # What links or configures leaves a CPU to what compiles.
    kernel, qemu, rootfs = _together(
        lambda: build_kernel(progress, patches=patches, flavour=flavour),
        lambda: build_qemu(progress, patches=patches_folder("qemu-patches")),
        lambda: rootfs_image(progress),
    )
    return LabArtifacts(
        toolbox=toolbox,
        qemu=qemu,
        kernel=kernel,
        guest_kernel=build_kernel(progress, patches=patches) if flavour == "debug" else kernel,
        rootfs_image=rootfs,
        meter=_made(progress, toolbox, "meter", ["meter"]),
        payload=_made(progress, toolbox, "payload", ["payload", "meter/magic.h"]),
    )


def _together(*tasks: Callable[[], Path]) -> list[Path]:
    with ThreadPoolExecutor(len(tasks)) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            return [future.result() for future in futures]
        except BaseException:
            kill_started()
            raise


def _made(progress: Progress, toolbox: Path, name: str, folders: list[str]) -> Path | None:
    """Run ``make -C NAME OUT=folder`` in the toolbox; None while the source folder has no Makefile."""
    if not (HERE / name / "Makefile").exists():
        return None
    sources = [HERE / folder for folder in folders]
    inputs = {"toolbox": toolbox.parent.name, "sources": cache.content_hash(sources)}

    def build(folder: Path) -> None:
        log = log_path(name)
        out = folder / "out"
        out.mkdir()
        binds = {HERE: Path("/run/lab"), out: Path("/run/out")}
        with progress.step(f"{name}: compile", log):
            run_in_tree(toolbox, ["make", "-C", f"/run/lab/{name}", "OUT=/run/out"], binds=binds, log=log)

    return cache.artifact(name, inputs, build) / "out"
