"""Which events count DRAM accesses, by what /proc/cpuinfo says (as of real machines)."""

from pathlib import Path

import pytest

from vmplace.sampling.dram_events import (
    AMD_ZEN2,
    AMD_ZEN4,
    GENERIC,
    INTEL,
    LOCAL,
    REMOTE,
    dram_events,
    misses_cpuless,
)


@pytest.mark.parametrize(
    ("vendor", "family", "model", "events"),
    [
        # Naples, and Rome.
        ("AuthenticAMD", 23, 1, GENERIC),
        ("AuthenticAMD", 23, 49, AMD_ZEN2),
        # Milan and Trento, then Genoa and Bergamo, then Turin.
        ("AuthenticAMD", 25, 1, AMD_ZEN2),
        ("AuthenticAMD", 25, 0x30, AMD_ZEN2),
        ("AuthenticAMD", 25, 17, AMD_ZEN4),
        ("AuthenticAMD", 25, 0xA0, AMD_ZEN4),
        ("AuthenticAMD", 26, 2, AMD_ZEN4),
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


def test_memory_on_a_node_without_cpus_is_remote_or_said_to_be_missing() -> None:
    (_, before), (_, since) = AMD_ZEN2[REMOTE], AMD_ZEN4[REMOTE]
    # Umask 0x80 of Zen 4: alternate_memories.  Tables before have no such umask.
    assert since & ~before == 0x8000 and AMD_ZEN2[LOCAL] == AMD_ZEN4[LOCAL]
    assert [misses_cpuless(one) for one in (AMD_ZEN2, AMD_ZEN4, INTEL)] == [False, False, True]


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
