"""Build vmplace with its C core, against the stable ABI so that one wheel fits every Python from 3.11."""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("vmplace/native")

setup(
    ext_modules=[
        Extension(
            "vmplace.native._native",
            sources=sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            define_macros=[("Py_LIMITED_API", "0x030B0000"), ("_GNU_SOURCE", "1")],
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
