"""The emulated kernel gets the TSC's frequency where it is known.  Truth: /proc/cpuinfo of machines."""

from pathlib import Path

import pytest

from lab.emulator import kernel_command_line, port_arguments

VIRTUAL = """processor\t: 0
cpu MHz\t\t: 2596.144
flags\t\t: fpu tsc constant_tsc nonstop_tsc tsc_known_freq hypervisor
processor\t: 1
cpu MHz\t\t: 2596.144
flags\t\t: fpu tsc constant_tsc nonstop_tsc tsc_known_freq hypervisor
"""


@pytest.mark.parametrize(
    ("cpuinfo", "reported"),
    [
        (VIRTUAL, True),
        (VIRTUAL.replace(" hypervisor", ""), False),
        (VIRTUAL.replace(" tsc_known_freq", ""), False),
        ("CPU architecture: 8\n", False),
    ],
)
def test_the_frequency_is_reported_where_a_hypervisor_gave_it(
    tmp_path: Path, cpuinfo: str, reported: bool
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    words = kernel_command_line(path).split()
    assert ("tsc_early_khz=2596144" in words) == reported
    assert "tsc=reliable" in words


def test_each_further_port_is_a_socket_outside_and_has_its_name_inside() -> None:
    words = port_arguments(["a.b", "c"])
    assert words.count("-chardev") == words.count("-device") == 2
    assert "virtserialport,chardev=c,name=c" in words and port_arguments([]) == []
