"""What is in the emulated host's root file system besides Debian's packages?"""

import subprocess
from pathlib import Path

from lab import cache, trees
from lab.progress import Progress, log_path
from lab.toolbox import run_in_tree

IMAGE_BYTES = 4 << 30
# A fixed id: systemd takes a machine without one for new and presets every unit.
MACHINE_ID = "6d9e2f0c5b7a4c318f2d1e0b9a847365"

FILES = {
    "etc/hostname": "lab\n",
    "etc/hosts": "127.0.0.1 localhost lab\n",
    "etc/fstab": "",
    "etc/machine-id": f"{MACHINE_ID}\n",
    # Nothing inside may depend on the machine outside.
    "etc/apt/apt.conf.d/90machine": "",
    "etc/apt/sources.list": "",
    "etc/resolv.conf": "",
    # Guests run as root without namespaces: the lab has no other users, a private /dev costs seconds.
    "etc/libvirt/qemu.conf": (
        'user = "root"\ngroup = "root"\ndynamic_ownership = 0\nnamespaces = []\nsecurity_driver = "none"\n'
    ),
    "etc/systemd/journald.conf.d/lab.conf": "[Journal]\nStorage=volatile\n",
    # Emulated CPUs are slow; nothing here may be taken for hanging.
    "etc/systemd/system.conf.d/lab.conf": (
        "[Manager]\nDefaultTimeoutStartSec=300s\nDefaultDeviceTimeoutSec=300s\nRuntimeWatchdogSec=off\n"
    ),
    "etc/systemd/system/serial-getty@ttyS0.service.d/autologin.conf": (
        "[Service]\nExecStart=\n"
        "ExecStart=-/sbin/agetty --autologin root --noclear --keep-baud 115200 - $TERM\n"
    ),
    # Without arguments libvirtd does not end itself after two idle minutes.
    "etc/systemd/system/libvirtd.service.d/lab.conf": "[Service]\nEnvironment=LIBVIRTD_ARGS=\n",
    "etc/profile.d/lab.sh": "resize() { :; }\nexport PAGER=less\n",
}
ENABLED = "libvirtd.service virtlogd.service qemu-guest-agent.service serial-getty@ttyS0.service"
MASKED = (
    "numad.service libvirt-guests.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer"
    " e2scrub_all.timer e2scrub_reap.service fstrim.timer systemd-timesyncd.service getty@tty1.service"
    " systemd-networkd.service networking.service systemd-tmpfiles-clean.timer"
)


def rootfs_image(progress: Progress, source: Path | None = None, *, masked: str = "") -> Path:
    """Return the emulated host's root file system as a raw, sparse ext4 image (read-only by agreement).

    ``source`` is another tree grown from the host's, of whose units some are ``masked``.
    """
    # Under a name of its own: of each name the cache keeps a few.
    name = f"rootfs-{source.parent.name.rpartition('-')[0]}" if source else "rootfs"
    source = source or trees.host_root(progress)
    inputs = {
        "tree": source.parent.name,
        "files": repr(FILES),
        "units": f"{ENABLED}; {MASKED}; recipe 2",
        "size": str(IMAGE_BYTES),
    } | ({"masked": masked} if masked else {})

    def build(folder: Path) -> None:
        log = log_path("rootfs")
        tree = folder / "tree"
        with progress.step("root file system: image", log):
            subprocess.run(["cp", "-a", str(source), str(tree)], check=True)
            _write_files(tree)
            run_in_tree(tree, ["systemctl", "enable", *ENABLED.split()], log=log)
            run_in_tree(tree, ["systemctl", "mask", *MASKED.split(), *masked.split()], log=log)
            # Newer than /usr: nothing is to be "updated" (ldconfig and the like) at the first boot.
            run_in_tree(tree, ["touch", "/usr", "/etc/.updated", "/var/.updated"], log=log)
            subprocess.run(
                ["sh", "-c", f"rm -rf {tree}/var/lib/apt/lists/* {tree}/var/cache/apt/*.bin"], check=True
            )
            _pack(trees.toolbox(progress), folder, log)
            cache.remove_tree(tree)

    return cache.artifact(name, inputs, build) / "root.img"


def _write_files(tree: Path) -> None:
    for name, text in FILES.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)


def _pack(toolbox: Path, folder: Path, log: Path) -> None:
    with (folder / "root.img").open("wb") as image:
        image.truncate(IMAGE_BYTES)
    command = ["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-L", "root", "-d", "/run/folder/tree"]
    run_in_tree(toolbox, [*command, "/run/folder/root.img"], binds={folder: Path("/run/folder")}, log=log)
