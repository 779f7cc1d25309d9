"""The kernel's package boots nothing unasked: its setting for GRUB names the newest other kernel."""

import gzip
import lzma
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.kernel_package import GRUB_FILE, GRUB_SETTING, beside_stock, read_config

KERNELS = (
    "6.1.0-30-amd64",
    "6.12.9+deb13-amd64",
    "6.12.48+deb13-amd64",
    "6.12.107-vmplace",
    "6.13.1-vmplace",
)
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs Debian's dpkg")


def top_level(folder: Path, given: str = "") -> str:
    """Return what GRUB reads out of the setting, as grub-mkconfig sources it."""
    script = f'{GRUB_SETTING}\nprintf %s "$GRUB_TOP_LEVEL"'
    env = os.environ | {"VMPLACE_BOOT": str(folder), "GRUB_TOP_LEVEL": given}
    return subprocess.run(["sh", "-ec", script], env=env, capture_output=True, text=True, check=True).stdout


def test_the_newest_kernel_that_is_not_vmplaces_stays_first(tmp_path: Path):
    for kernel in KERNELS:
        (tmp_path / f"vmlinuz-{kernel}").touch()
    assert top_level(tmp_path) == f"{tmp_path}/vmlinuz-6.12.48+deb13-amd64"


def test_without_another_kernel_nothing_is_said_and_who_said_something_is_followed(tmp_path: Path):
    (tmp_path / "vmlinuz-6.12.107-vmplace").touch()
    assert top_level(tmp_path) == ""
    assert top_level(tmp_path, "/boot/vmlinuz-mine") == "/boot/vmlinuz-mine"


@needs_dpkg
def test_the_setting_is_in_the_package_and_can_be_changed(tmp_path: Path):
    root = tmp_path / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: linux-image-6.12.107-vmplace\nVersion: 1\nArchitecture: all\n"
        "Maintainer: a <a@b>\nDescription: x\n"
    )
    (root / "boot").mkdir()
    (root / "boot/vmlinuz-6.12.107-vmplace").write_text("kernel")
    image = tmp_path / "linux-image-6.12.107-vmplace_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", root, image], check=True, capture_output=True)
    (tmp_path / "out").mkdir()
    made = beside_stock(image, tmp_path / "out")
    shutil.rmtree(root)
    subprocess.run(["dpkg-deb", "--raw-extract", made, root], check=True)
    assert (root / GRUB_FILE).read_text() == GRUB_SETTING
    assert (root / "DEBIAN/conffiles").read_text() == f"/{GRUB_FILE}\n"
    assert (root / "boot/vmlinuz-6.12.107-vmplace").read_text() == "kernel"


CONFIG = "# Linux/x86 6.12\nCONFIG_KVM=y\n# CONFIG_NUMA is not set\n"


def test_a_configuration_is_read_as_debian_proc_and_the_kernel_write_it(tmp_path: Path):
    plain, xz, gz = tmp_path / ".config", tmp_path / "config.amd64.xz", tmp_path / "config.gz"
    plain.write_text(CONFIG)
    xz.write_bytes(lzma.compress(CONFIG.encode()))
    gz.write_bytes(gzip.compress(CONFIG.encode()))
    assert [read_config(path) for path in (plain, xz, gz)] == [CONFIG] * 3


@pytest.mark.parametrize("content", [b"", b"a letter\n", b"\xff\xfe", b"\xfd7zXZ"], ids=repr)
@pytest.mark.parametrize("name", ["config", "config.xz", "config.gz"])
def test_what_is_no_configuration_is_refused(tmp_path: Path, name: str, content: bytes):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(LabError, match="config"):
        read_config(path)
