"""How is the patched kernel made a Debian package, to be installed beside the stock kernel?

1. Debian's source with the series, configured as Debian configures its own kernel, so that it runs wherever
   that does, or by a file of yours; and what the series and the agent want besides.
2. The kernel's own target ``bindeb-pkg``.  Its release ends in ``-vmplace``: it replaces no other kernel.
3. GRUB would boot whichever kernel has the highest version.  So the package gets a setting for GRUB by which
   the newest *other* kernel stays first (GRUB_TOP_LEVEL, since GRUB 2.12, Debian 13); the administrator who
   wants the patched one chooses it in the menu, or sets GRUB_DEFAULT.
"""

import gzip
import lzma
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from lab import cache, trees
from lab.errors import LabError
from lab.kernel import SOURCE, prepare_source, refused_options, wanted_options
from lab.patching import series
from lab.progress import Progress, log_path
from lab.toolbox import run_in_tree

RELEASE = "-vmplace"
DEBIAN_CONFIG = "/usr/src/linux-config-6.12/config.amd64_none_amd64.xz"
WANTED = """\
CONFIG_KVM_PLACEMENT=y
CONFIG_IDLE_PAGE_TRACKING=y
CONFIG_DEBUG_INFO_NONE=y
CONFIG_DEBUG_INFO_BTF=n
"""
"""What the series adds, without its points of delay for tests; what the agent samples by; no debug package of
a gigabyte.  Modules are signed with a key of the build's own."""
GRUB_FILE = "etc/default/grub.d/vmplace-kernel.cfg"
GRUB_SETTING = """\
# The newest kernel that is not vmplace's stays the one that boots.  To have vmplace's boot, choose it in
# the menu, or set GRUB_DEFAULT in /etc/default/grub; this file may be changed or emptied, too.
others=$(find "${VMPLACE_BOOT:-/boot}" -maxdepth 1 -name 'vmlinuz-*' ! -name '*-vmplace' | sort -V)
: "${GRUB_TOP_LEVEL:=$(echo "$others" | tail -n 1)}"
"""


def build_kernel_package(
    progress: Progress, out: Path, *, patches: Path, given: Path | None = None, config_only: bool = False
) -> tuple[Path, ...]:
    """Return the packages in ``out``, or the configuration alone.  Raises LabError.

    ``given``: a configuration, in place of Debian's.  With Debian's the build takes hours and some 15 GB.
    """
    tree, log = trees.kernel_packaging(progress), log_path("kernel-package")
    work = cache.artifact_dir("kernel-package-tree", {"toolbox": tree.parent.name})
    with cache.locked(work.name):
        prepare_source(tree, work, series(patches), progress, log)
        configure(tree, work, progress, log, given)
        out.mkdir(parents=True, exist_ok=True)
        if config_only:
            return (Path(shutil.copy(work / SOURCE / ".config", out / "config")),)
        for old in work.glob("*.deb"):
            old.unlink()
        with progress.step("kernel package: build", log):
            build = ["sh", "-c", "exec make -j$(nproc) bindeb-pkg"]
            run_in_tree(tree, build, binds={work: Path("/build")}, cwd=f"/build/{SOURCE}", log=log)
        return tuple(
            _kept(made, out) for made in sorted(work.glob("linux-*.deb")) if "-dbg_" not in made.name
        )


def configure(tree: Path, work: Path, progress: Progress, log: Path, given: Path | None = None) -> None:
    """Configure the source as ``given`` or as Debian does, with what is wanted besides.

    Raises LabError where kconfig refuses an option, or ``given`` cannot be read.
    """
    (work / "wanted").write_text(WANTED)
    begin = f"xz -dc {DEBIAN_CONFIG}" if given is None else "cat /build/given"
    if given is not None:
        (work / "given").write_text(read_config(given))
    command = (
        f"{begin} >.config && cat /build/wanted >>.config"
        f" && ./scripts/config --set-str LOCALVERSION '{RELEASE}' --disable LOCALVERSION_AUTO"
        " --set-str SYSTEM_TRUSTED_KEYS ''"
        " && make olddefconfig"
    )
    with progress.step("kernel package: configure", log):
        run_in_tree(
            tree, ["sh", "-c", command], binds={work: Path("/build")}, cwd=f"/build/{SOURCE}", log=log
        )
    refused = refused_options(wanted_options(WANTED), (work / SOURCE / ".config").read_text())
    if refused:
        raise LabError(f"kconfig refused {', '.join(refused)}", hint=f"see {log}")


def read_config(path: Path) -> str:
    """Return a kernel's configuration, which may be compressed by xz or gzip as Debian and /proc have it."""
    unpackers: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.decompress, ".gz": gzip.decompress}
    unpack = unpackers.get(path.suffix, bytes)
    try:
        text = unpack(path.read_bytes()).decode()
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as err:
        raise LabError(
            f"{path} cannot be read: {err}", hint="give a kernel's .config, .config.xz or .config.gz"
        ) from err
    if not wanted_options(text):
        raise LabError(
            f"{path} is no configuration of a kernel", hint="it has no line that begins with CONFIG_"
        )
    return text


def _kept(made: Path, out: Path) -> Path:
    return beside_stock(made, out) if made.name.startswith("linux-image-") else Path(shutil.copy(made, out))


def beside_stock(image: Path, out: Path) -> Path:
    """Return the kernel's package with the setting that keeps GRUB from booting it unasked."""
    with tempfile.TemporaryDirectory(prefix="vmplace-kernel-") as scratch:
        root = Path(scratch) / "root"
        _dpkg_deb("--raw-extract", image, root)
        (root / GRUB_FILE).parent.mkdir(parents=True, exist_ok=True)
        (root / GRUB_FILE).write_text(GRUB_SETTING)
        with (root / "DEBIAN/conffiles").open("a") as conffiles:
            conffiles.write(f"/{GRUB_FILE}\n")
        _dpkg_deb("--root-owner-group", "--build", root, out / image.name)
    return out / image.name


def _dpkg_deb(*words: str | Path) -> None:
    done = subprocess.run(["dpkg-deb", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"dpkg-deb: {done.stderr.strip()}", hint="is this a machine with Debian's dpkg?")
