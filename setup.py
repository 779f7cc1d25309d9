"""Build vmplace with its C core, against the stable ABI so that one wheel fits every Python from 3.11."""

import os
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

NATIVE = Path("vmplace/native")
KVM_PATCHES = "kvm-patches"
HOOK = "libvirt-hooks/qemu.d/vmplace"
CAPTURED = Path("tests/data/hosts")
PROGRAM = NATIVE / "vmplace-apart"
SHARED = NATIVE / "calls.c"
"""For both the core and the program, which has no Python."""
PROGRAM_SOURCES = [str(SHARED), *sorted(str(path) for path in NATIVE.glob("apart_*.c"))]
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]


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


class BuildWithProgram(build_ext):  # type: ignore[misc]
    """The core, and beside it the program that makes calls in a process of its own (vmplace/apart.py)."""

    def run(self) -> None:
        """Build both, in the folder of sources for an editable installation."""
        super().run()
        path = self._program()
        temp = Path(self.build_temp)
        objects = self.compiler.compile(
            PROGRAM_SOURCES,
            output_dir=str(temp / "program"),
            macros=[("_GNU_SOURCE", "1")],
            extra_postargs=[*FLAGS, "-fPIE"],
        )
        # distutils passes LDFLAGS to shared objects only.
        hardened = [*shlex.split(os.environ.get("LDFLAGS", "")), "-pie", "-Wl,-z,relro,-z,now"]
        self.compiler.link_executable(objects, path.name, output_dir=str(temp), extra_postargs=hardened)
        # Not written where it is: a process that was left behind may run it.
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(temp / path.name, new := path.with_suffix(".new"))
        new.replace(path)

    def get_outputs(self) -> list[str]:
        """Return what is built, for those that install it."""
        # In place, it is among those of the mapping.
        return list(super().get_outputs()) if self.inplace else [*super().get_outputs(), str(self._program())]

    def get_output_mapping(self) -> dict[str, str]:
        """Return files that are built in place, by where they would be: a strict editable links to them."""
        built = {str(Path(self.build_lib) / PROGRAM): str(PROGRAM)} if self.inplace else {}
        return {**super().get_output_mapping(), **built}

    def _program(self) -> Path:
        return PROGRAM if self.inplace else Path(self.build_lib) / PROGRAM


setup(
    cmdclass={"build_ext": BuildWithProgram, "build_py": BuildWithHook, "sdist": SdistWithLinks},
    ext_modules=[
        Extension(
            "vmplace.native._native",
            sources=sorted({str(path) for path in NATIVE.glob("*.c")} - set(PROGRAM_SOURCES) | {str(SHARED)}),
            depends=[*sorted(str(path) for path in NATIVE.glob("*.h")), f"{KVM_PATCHES}/kvm_placement.h"],
            # The interface of the placement fd is in one place: next to the patches.
            include_dirs=[KVM_PATCHES],
            define_macros=[("Py_LIMITED_API", "0x030B0000"), ("_GNU_SOURCE", "1")],
            extra_compile_args=[*FLAGS, "-Wno-unused-parameter"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
