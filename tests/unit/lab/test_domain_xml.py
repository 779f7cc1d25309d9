"""Guests as libvirt gets them: golden documents, and the rules that a golden file cannot show."""

from pathlib import Path, PurePosixPath
from xml.etree import ElementTree as ET

import pytest

from lab.domain_xml import Boot, domain_xml
from lab.scenario import Guest, Scenario, read_scenario
from lab.workload import Touch, Workload
from vmplace.errors import VmplaceError

GOLDEN = Path(__file__).parents[2] / "data/domains"
CPUS = {0: (0, 1), 1: (2, 3), 2: (4, 5), 3: (6, 7)}
BOOT = Boot(PurePosixPath("/boot/bzImage"), PurePosixPath("/boot/payload.cpio.gz"), PurePosixPath("/run/lab"))


def xml_of(scenario: Scenario, name: str) -> str:
    guest = next(guest for guest in scenario.guests if guest.name == name)
    return domain_xml(scenario, guest, BOOT, CPUS)


def one_guest(**fields: object) -> str:
    given = {
        "name": "one",
        "start_nids": (1,),
        "memory_mib": 128,
        "workload": Workload(arena_mib=64),
    } | fields
    guest = Guest(**given)  # type: ignore[arg-type]
    return domain_xml(Scenario(name="try", topology="n2", guests=(guest,)), guest, BOOT, CPUS)


@pytest.mark.parametrize("name", ["web0", "cells"])
def test_a_guest_of_the_demo_is_the_golden_document(name: str) -> None:
    golden = GOLDEN / f"lab-{name}.xml"
    assert xml_of(read_scenario("wrong-node"), name) == golden.read_text()


def test_no_guest_has_a_memory_policy_which_would_shut_out_kernel_balancing() -> None:
    assert ET.fromstring(one_guest()).find("numatune") is None  # noqa: S314 - our own document


@pytest.mark.parametrize(
    ("backing", "element"),
    [("hugetlb", "hugepages"), ("locked", "locked"), ("memfd", "source[@type='memfd']")],
)
def test_backing_is_reported_to_libvirt(backing: str, element: str) -> None:
    domain = ET.fromstring(one_guest(backing=backing))  # noqa: S314 - our own document
    assert domain.find(f"memoryBacking/{element}") is not None


def test_only_a_guest_in_small_pages_starts_through_the_program_that_forbids_huge_ones() -> None:
    started = [
        ET.fromstring(one_guest(huge_pages=huge)).findtext("devices/emulator")  # noqa: S314 - our own
        for huge in (True, False)
    ]
    assert started == ["/usr/bin/qemu-system-x86_64", "/usr/local/bin/vmp-small-pages"]


def test_a_pattern_too_long_for_the_kernel_command_line_is_refused() -> None:
    touch = tuple(Touch(vcpus="0", ranges=("0+64",)) for _ in range(60))
    with pytest.raises(VmplaceError, match="command line of"):
        one_guest(workload=Workload(arena_mib=64, touch=touch))
