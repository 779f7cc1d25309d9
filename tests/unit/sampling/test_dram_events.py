"""Which events count DRAM accesses, by what /proc/cpuinfo says (as of real machines)."""

from pathlib import Path

import pytest

from vmplace.sampling.dram_events import AMD, GENERIC, INTEL, dram_events


@pytest.mark.parametrize(
    ("vendor", "family", "model", "events"),
    [
        ("AuthenticAMD", 23, 49, AMD),
        ("AuthenticAMD", 25, 17, AMD),
        ("AuthenticAMD", 21, 2, GENERIC),
        ("GenuineIntel", 6, 85, INTEL),
        ("GenuineIntel", 6, 143, INTEL),
        ("GenuineIntel", 6, 0xAD, INTEL),
        ("GenuineIntel", 6, 0xAE, INTEL),
        # Broadwell-EP: its events have errata.
        ("GenuineIntel", 6, 0x4F, GENERIC),
        ("GenuineIntel", 6, 158, GENERIC),
    ],
)
def test_events_follow_vendor_family_and_model(
    tmp_path: Path, vendor: str, family: int, model: int, events: object
) -> None:
    cpu = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}"
    reported = f"processor\t: 0\n{cpu}\n\nprocessor\t: 1\n"
    (tmp_path / "cpuinfo").write_text(reported)
    assert dram_events(tmp_path / "cpuinfo") is events


def test_a_machine_that_tells_nothing_has_the_generic_event(tmp_path: Path) -> None:
    assert dram_events(tmp_path / "absent") is GENERIC


WRONG = {
    "none": "",
    "below 0": "-25",
    "blank": "1_9",
    "Arabic": "\u0662\u0665",
    "long": "9" * 5000,
    "large": "271",
}


@pytest.mark.parametrize("family", WRONG.values(), ids=WRONG)
def test_a_family_that_no_cpu_has_is_that_of_no_known_one(tmp_path: Path, family: str) -> None:
    (tmp_path / "cpuinfo").write_text(f"vendor_id\t: AuthenticAMD\ncpu family\t: {family}\nmodel\t: 17\n")
    assert dram_events(tmp_path / "cpuinfo") is GENERIC
