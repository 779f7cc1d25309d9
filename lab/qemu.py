"""How is the lab's emulator built?

QEMU's source in the version of Debian's package, plus ``qemu-patches/series``, for one target, with only what
the emulated hosts consist of: a full build takes three times as long.  Programs that come with QEMU
(qemu-img) and its firmware are the package's.  KVM and NUMA policies are for guests that the same binary
runs inside an emulated host.
"""

import shutil
from pathlib import Path

from lab import cache, trees
from lab.patching import apply_series, series
from lab.progress import Progress, log_path
from lab.toolbox import compile_in_tree, run_in_tree

BINARY = "qemu-system-x86_64"
FIRMWARE = ("/usr/share/seabios", "/usr/share/qemu")
TREE = "qemu"
DEVICES = Path(__file__).with_name("qemu.devices")
CONFIGURE = (
    *("--target-list=x86_64-softmmu", "--without-default-features", "--without-default-devices"),
    *("--with-devices-x86_64=vmplace", "--enable-system", "--enable-tcg", "--enable-plugins"),
    *("--enable-kvm", "--enable-numa"),
    *("--disable-install-blobs", "--disable-docs", "--disable-debug-info", "--disable-fdt"),
)
UNPACK = f"mkdir {TREE} && tar -xJf {trees.QEMU_SOURCE} -C {TREE} --strip-components=1"


def build_qemu(progress: Progress, *, patches: Path) -> Path:
    """Return the emulator's binary, to be run inside the toolbox."""
    toolbox = trees.qemu_toolbox(progress)
    inputs = {
        "toolbox": toolbox.parent.name,
        "configure": " ".join(CONFIGURE),
        "devices": DEVICES.read_text(),
        "patches": "\n".join(path.read_text() for path in series(patches)),
    }

    def build(folder: Path) -> None:
        work = cache.artifact_dir("qemu-tree", {"toolbox": toolbox.parent.name})
        with cache.locked(work.name):
            compile_qemu(trees.compilers(progress), work, series(patches), progress)
            shutil.copy(work / "build" / BINARY, folder / BINARY)

    return cache.artifact("qemu", inputs, build) / BINARY


def compile_qemu(toolbox: Path, work: Path, patches: list[Path], progress: Progress) -> None:
    """Build the emulator in ``work``, a folder made at the first time; later only what patches change."""
    log, binds = log_path("qemu"), {work: Path("/build")}
    if not (work / "unpacked").exists():
        with progress.step("qemu: unpack", log):
            cache.remove_tree(work)
            (work / "build").mkdir(parents=True)
            run_in_tree(toolbox, ["sh", "-ec", UNPACK], binds=binds, cwd="/build", log=log)
            (work / "unpacked").touch()
    with progress.step(f"qemu: apply {len(patches)} patches", log):
        apply_series(toolbox, work, TREE, patches, log)
    with progress.step("qemu: compile", log):
        shutil.copy(DEVICES, work / TREE / "configs/devices/x86_64-softmmu/vmplace.mak")
        run_in_tree(toolbox, [f"../{TREE}/configure", *CONFIGURE], binds=binds, cwd="/build/build", log=log)
        compile_in_tree(toolbox, ["ninja", BINARY], binds=binds, cwd="/build/build", log=log)
