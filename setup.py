"""Build vmplace with its C core, against the stable ABI so that one wheel fits every Python from 3.11."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

NATIVE = Path("vmplace/native")
KVM_PATCHES = "kvm-patches"
HOOK = "libvirt-hooks/qemu.d/vmplace"
CAPTURED = Path("tests/data/hosts")


class SdistWithLinks(sdist):  # type: ignore[misc]
    """setuptools leaves links to folders out; sysfs of captured machines is full of them."""

    def make_release_tree(self, base_dir: str, files: Iterable[str]) -> None:
        """Make the tree that becomes the archive."""
        super().make_release_tree(base_dir, files)
        for folder, names, _ in os.walk(CAPTURED):
            for link in (Path(folder, name) for name in names if Path(folder, name).is_symlink()):
                (Path(base_dir) / link).symlink_to(link.readlink())


class BuildWithHook(build_py):  # type: ignore[misc]
    """libvirt's hook comes along for ``vmplace install``; a checkout has it in its own folder."""

    def run(self) -> None:
        """Copy the packages, and the hook."""
        super().run()
        if not self.editable_mode:
            shutil.copy(HOOK, Path(self.build_lib) / "vmplace/interfaces/qemu-hook")


setup(
    cmdclass={"build_py": BuildWithHook, "sdist": SdistWithLinks},
    ext_modules=[
        Extension(
            "vmplace.native._native",
            sources=sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=[*sorted(str(path) for path in NATIVE.glob("*.h")), f"{KVM_PATCHES}/kvm_placement.h"],
            # The interface of the placement fd is in one place: next to the patches.
            include_dirs=[KVM_PATCHES],
            define_macros=[("Py_LIMITED_API", "0x030B0000"), ("_GNU_SOURCE", "1")],
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
