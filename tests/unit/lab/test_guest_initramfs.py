"""The guests' larger initramfs holds what the loader asks for."""

from lab.guest_initramfs import parse_libraries

# ldd in a trixie tree, shortened.
LDD = """\
	linux-vdso.so.1 (0x00007fbd69e3e000)
	libacl.so.1 => /lib/x86_64-linux-gnu/libacl.so.1 (0x00007fbd69e27000)
	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007fbd6740c000)
	/lib64/ld-linux-x86-64.so.2 (0x00007fbd69e40000)
"""


def test_libraries_and_the_loader_are_found_but_not_the_kernels_page() -> None:
    folder = "/lib/x86_64-linux-gnu"
    assert parse_libraries(LDD) == (
        f"{folder}/libacl.so.1",
        f"{folder}/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
    )


def test_a_static_program_has_none() -> None:
    assert parse_libraries("\tnot a dynamic executable\n") == ()
