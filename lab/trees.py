"""What Debian trees does the lab consist of, and where do they come from?

One minimal trixie tree is debootstrapped from the machine's own package source.  Two trees grow out of it:
the *toolbox* (compiler, QEMU, sources: the machine itself gets nothing installed) and the *root file
system* of the emulated host.
"""

import shutil
import subprocess
from pathlib import Path

from lab import cache
from lab.errors import LabError
from lab.progress import Progress, log_path
from lab.toolbox import contained_command, run_in_tree, started

SUITE = "trixie"
# Bump when a recipe below changes in a way that its package list does not show.
RECIPE = "1"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")

TOOLBOX_PACKAGES = (
    "qemu-system-x86 qemu-utils gcc make bc flex bison libelf-dev libssl-dev libglib2.0-dev libc6-dev"
    " pkg-config e2fsprogs cpio xz-utils patch python3 linux-source-6.12 busybox-static meson ninja-build"
    " python3-pycotap python3-venv zlib1g-dev"
)
# Only the emulator wants it: what else is built in the toolbox stays as it is.
QEMU_PACKAGES = "libnuma-dev"
# An emulator of Intel CPUs with VMX and EPT, and what makes its boot medium.
BOCHS_PACKAGES = "bochs bochs-term grub-common grub-pc-bin xorriso mtools"
HOST_PACKAGES = (
    "systemd-sysv dbus udev kmod libvirt-daemon libvirt-daemon-system libvirt-daemon-driver-qemu"
    " libvirt-daemon-log libvirt-clients qemu-system-x86 qemu-utils seabios numad numactl linux-perf"
    " stress-ng python3 python3-numpy python3-click python3-msgspec python3-rich python3-libvirt"
    " qemu-guest-agent busybox-static procps iproute2 strace less"
)
# What a compute node of OpenStack talks to, but for Neutron: guests get no network.
CLOUD_PACKAGES = (
    "nova-api nova-conductor nova-scheduler placement-api glance-api rabbitmq-server mariadb-server"
    " python3-waitress iproute2"
)
# Debian's own tools, and what the build runs of vmplace: debian/control, Build-Depends.
PACKAGING_PACKAGES = (
    "build-essential click-man debhelper dh-python fakeroot lintian pybuild-plugin-pyproject python3-all-dev"
    " python3-click python3-msgspec python3-numpy python3-prometheus-client python3-rich python3-setuptools"
)


def package_uri(label: str = "Debian") -> str | None:
    """Return the URI the machine's own apt uses for packages of that label, or None."""
    shown = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Label: {label}", "Identifier: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    return shown[0].rstrip("/") if shown else None


def _base_inputs() -> dict[str, str]:
    return {"suite": SUITE, "recipe": RECIPE}


def base(progress: Progress) -> Path:
    """Return the minimal Debian tree that the others grow from."""

    def build(folder: Path) -> None:
        uri = package_uri()
        if uri is None:
            raise LabError("no Debian package source in apt's configuration", hint="apt-get update")
        log = log_path("base")
        tree = folder / "tree"
        with progress.step("base tree: debootstrap", log):
            _debootstrap(tree, uri, log)
            _configure_apt(tree, uri)
            run_in_tree(tree, ["apt-get", "update"], log=log)

    return cache.artifact("base", _base_inputs(), build) / "tree"


def _debootstrap(tree: Path, uri: str, log: Path) -> None:
    # Without a keyring debootstrap would only warn that nothing is checked.
    words = ["debootstrap", "--force-check-gpg", "--variant=minbase", SUITE, str(tree), uri]
    # It mounts /proc in the tree, and would outlive us as any child does.
    command = contained_command(words)
    with log.open("ab") as sink, started(command, stdout=sink, stderr=subprocess.STDOUT) as process:
        if process.wait():
            raise LabError("debootstrap failed", hint=f"read {log}; it needs debian-archive-keyring")


def _configure_apt(tree: Path, uri: str) -> None:
    sources = [f"{kind} {uri} {SUITE} main" for kind in ("deb", "deb-src")]
    security = package_uri("Debian-Security")
    if security:
        sources += [f"{kind} {security} {SUITE}-security main" for kind in ("deb", "deb-src")]
    (tree / "etc/apt/sources.list").write_text("\n".join(sources) + "\n")
    (tree / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
    policy = tree / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    # The machine's own way to the packages: proxies, and a proxy's certificate authority.
    dump = subprocess.run(
        ["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True
    ).stdout
    kept = [
        line for line in dump.splitlines() if "::Proxy" in line or "::CaInfo" in line or "::Verify" in line
    ]
    (tree / "etc/apt/apt.conf.d/90machine").write_text("\n".join(kept) + "\n")
    if CA_BUNDLE.exists():
        (tree / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
        shutil.copy(CA_BUNDLE, tree / CA_BUNDLE.relative_to("/"))
    shutil.copy("/etc/resolv.conf", tree / "etc/resolv.conf")


def _grown(
    name: str, packages: str, progress: Progress, finish: list[str], *, onto: Path | None = None
) -> Path:
    """Return the base tree, or tree ``onto``, plus packages; ``finish`` are shell commands for the end."""
    inputs = _base_inputs() | {"packages": packages, "finish": "\n".join(finish)}
    inputs |= {"onto": onto.parent.name} if onto else {}

    def build(folder: Path) -> None:
        tree, log = folder / "tree", log_path(name)
        source = onto or base(progress)
        with progress.step(f"{name}: packages", log):
            subprocess.run(["cp", "-a", str(source), str(tree)], check=True)
            install = ["apt-get", "install", "-y", "--no-install-recommends", *packages.split()]
            # An archive that changes between update and install answers 404 for the old files.
            run_in_tree(tree, ["sh", "-ec", "apt-get update"], log=log)
            run_in_tree(tree, install, log=log)
            for command in [*finish, "apt-get clean"]:
                run_in_tree(tree, ["sh", "-ec", command], log=log)

    return cache.artifact(name, inputs, build) / "tree"


QEMU_SOURCE = "/usr/src/qemu.orig.tar.xz"
# The lab's own QEMU is built from it, and the plugin API's header is in no package.
QEMU_SOURCE_RECIPE = (
    "cd /run && version=$(dpkg-query -W -f '${source:Version}' qemu-system-x86)"
    ' && apt-get source --download-only "qemu=$version"'
    f" && cp qemu_*.orig.tar.xz {QEMU_SOURCE}"
    f" && tar -xJf {QEMU_SOURCE} --wildcards '*/include/qemu/qemu-plugin.h'"
    " && cp qemu-*/include/qemu/qemu-plugin.h /usr/include/"
)


def toolbox(progress: Progress) -> Path:
    """Return the tree that has compiler, kernel source, QEMU, its source and its plugin header."""
    return _grown("toolbox", TOOLBOX_PACKAGES, progress, [QEMU_SOURCE_RECIPE])


def qemu_toolbox(progress: Progress) -> Path:
    """Return the toolbox with what the lab's QEMU is built of besides."""
    return _grown("qemu-toolbox", QEMU_PACKAGES, progress, [], onto=toolbox(progress))


def compilers(progress: Progress) -> Path:
    """Return the tree that kernel and QEMU are compiled in: theirs, with ccache (toolbox.compile_in_tree)."""
    return _grown("compilers", "ccache", progress, [], onto=qemu_toolbox(progress))


def bochs_root(progress: Progress) -> Path:
    """Return the tree that has Bochs, and GRUB's tools to make an image it boots from."""
    return _grown("bochs-root", BOCHS_PACKAGES, progress, [])


def host_root(progress: Progress) -> Path:
    """Return the emulated host's root file system as a tree, packages only."""
    return _grown(
        "host-root", HOST_PACKAGES, progress, ["rm -rf /usr/share/doc /usr/share/man /usr/share/locale"]
    )


def packaging(progress: Progress) -> Path:
    """Return the tree in which the Debian package is built."""
    return _grown("packaging", PACKAGING_PACKAGES, progress, [])


def kernel_packaging(progress: Progress) -> Path:
    """Return the toolbox with Debian's kernel configuration, and what the kernel's own bindeb-pkg wants."""
    packages = "linux-config-6.12 build-essential cpio debhelper kmod openssl rsync xz-utils zstd"
    return _grown("kernel-packaging", packages, progress, [], onto=toolbox(progress))


def managed_host(progress: Progress) -> Path:
    """Return the emulated host's tree with what Ansible wants of a host it manages."""
    packages = "python3-apt python3-prometheus-client"
    return _grown("managed-host", packages, progress, [], onto=host_root(progress))


def compute_node(progress: Progress) -> Path:
    """Return the emulated host's tree with Nova's agent for libvirt, nova-compute."""
    finish = ["rm -rf /usr/share/doc /usr/share/man /usr/share/locale"]
    return _grown("compute-node", "nova-compute nova-compute-kvm", progress, finish, onto=host_root(progress))


def cloud_services(progress: Progress) -> Path:
    """Return the tree with OpenStack's services, their database and message queue."""
    return _grown("cloud-services", CLOUD_PACKAGES, progress, [])
