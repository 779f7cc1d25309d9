"""Guest RAM is found in the mappings of a VMM.  Truth: what a real QEMU's monitor said of itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from vmplace.topology.description import GuestDescription, RamBlock
from vmplace.topology.domain_xml import parse_domain
from vmplace.topology.gfn import low_ram_bytes
from vmplace.topology.guest import Movability
from vmplace.topology.monitor_layout import locate_exact
from vmplace.topology.movability import classify, find_process_pin
from vmplace.topology.procfs import Vma, parse_smaps
from vmplace.topology.ram import build_ranges, locate_ram, select_candidates

DOMAINS = Path(__file__).parents[2] / "data/domains"
DOMAIN = parse_domain((DOMAINS / "q35-3cells.xml").read_text())
VMAS = parse_smaps((DOMAINS / "q35-3cells.smaps").read_text())
RAMBLOCK = (DOMAINS / "q35-3cells.ramblock").read_text()
MTREE = (DOMAINS / "q35-3cells.mtree").read_text()
# As `info ramblock` says.
HVAS = {0: 0x7F7A7FE00000, 1: 0x7F7A6FC00000, 2: 0x7F7A67A00000}
MIB = 1 << 20
GIB = 1 << 30


def vma(start: int, size: int, *, perms: str = "rw-p", path: str = "", flags: str = "") -> Vma:
    return Vma(start, start + size, perms, path, 4096, frozenset(flags.split()))


def test_cells_are_kept_apart_as_qemu_laid_them():
    placed = locate_ram(select_candidates(VMAS), DOMAIN)
    assert {block.cell: block.vma.start for block in placed} == HVAS
    assert [block.gpa for block in placed] == [0, 256 * MIB, 512 * MIB]


def test_the_monitor_agrees_with_the_inference():
    candidates = select_candidates(VMAS)
    exact = build_ranges(locate_exact(RAMBLOCK, MTREE, candidates, DOMAIN), None)
    inferred = build_ranges(locate_ram(candidates, DOMAIN), None)
    assert exact == inferred


def test_sizes_that_match_nothing_are_no_claim_about_the_layout():
    other = replace(DOMAIN, blocks=(RamBlock(300 * MIB, 0), RamBlock(340 * MIB, 1)))
    placed = locate_ram(select_candidates(VMAS), other)
    # Without video memory, firmware, stacks, code buffers.
    assert [block.vma.start for block in placed] == list(HVAS.values())
    assert {(block.gpa, block.cell) for block in placed} == {(None, None)}


def test_two_mappings_of_one_size_are_no_claim_either():
    twins = [vma(0, 512 * MIB, flags="dc"), vma(GIB, 512 * MIB, flags="dc")]
    placed = locate_ram(select_candidates(twins), GuestDescription("a", blocks=(RamBlock(512 * MIB, 3),)))
    assert [block.cell for block in placed] == [None, None]


def test_a_mapping_split_by_a_memory_policy_is_one_block():
    halves = [vma(GIB, 256 * MIB, flags="dc"), vma(GIB + 256 * MIB, 256 * MIB, flags="dc")]
    placed = locate_ram(select_candidates(halves), GuestDescription("a", blocks=(RamBlock(512 * MIB, 3),)))
    assert [(block.vma.start, block.size_bytes, block.cell) for block in placed] == [(GIB, 512 * MIB, 3)]


# Seen with `info mtree -f` of QEMU 10.0, per machine and -m: where RAM below 4 GiB ends.
@pytest.mark.parametrize(
    ("machine", "ram_mib", "low"),
    [
        ("q35", 2815, 0xAFF00000),
        ("q35", 2816, 0x80000000),
        ("pc-q35-10.0", 4096, 0x80000000),
        ("pc", 3583, 0xDFF00000),
        ("pc", 3584, 0xC0000000),
        ("pc-i440fx-9.2", 6144, 0xC0000000),
        ("microvm", 4096, None),
        (None, 4096, None),
        ("q35", 1100 << 10, None),
    ],
)
def test_ram_below_4_gib(machine: str | None, ram_mib: int, low: int | None):
    assert low_ram_bytes(machine, ram_mib * MIB) == low


def test_ram_above_the_hole_is_a_range_of_its_own():
    description = GuestDescription("a", machine="q35", blocks=(RamBlock(2 * GIB, 0), RamBlock(2 * GIB, 1)))
    candidates = [vma(8 * GIB, 2 * GIB, flags="dc"), vma(5 * GIB, 2 * GIB, flags="dc")]
    ranges = build_ranges(locate_ram(candidates, description), None)
    assert [(r.hva, r.base_gfn, r.cell) for r in ranges] == [(8 * GIB, 0, 0), (5 * GIB, 4 * GIB >> 12, 1)]
    single = GuestDescription("a", machine="pc", blocks=(RamBlock(4 * GIB),))
    ranges = build_ranges(locate_ram([vma(8 * GIB, 4 * GIB, flags="dc")], single), None)
    assert [(r.hva, r.base_gfn, r.size_bytes) for r in ranges] == [
        (8 * GIB, 0, 3 * GIB),
        (11 * GIB, 4 * GIB >> 12, GIB),
    ]


@pytest.mark.parametrize(
    ("mapping", "movability", "reason"),
    [
        (vma(0, MIB), Movability.MOVABLE, "anonymous"),
        (vma(0, MIB, flags="lo"), Movability.PINNED, "mlocked"),
        (vma(0, MIB, path="/dev/hugepages/x", flags="ht"), Movability.HUGETLB, "hugetlb"),
        (vma(0, MIB, perms="rw-s", path="/memfd:ram (deleted)"), Movability.SHARED, "memfd"),
        (vma(0, MIB, path="/dev/shm/ram"), Movability.SHARED, "file"),
    ],
)
def test_mappings_are_classified_with_a_reason(mapping: Vma, movability: Movability, reason: str):
    found, why = classify(mapping)
    assert found is movability
    assert reason in why


@pytest.mark.parametrize(
    ("target", "movability"),
    [
        ("/dev/vfio/42", Movability.PINNED),
        ("anon_inode:[vfio-device]", Movability.PINNED),
        ("/dev/vhost-vdpa-0", Movability.PINNED),
        ("anon_inode:[kvm-gmem]", Movability.GUEST_MEMFD),
        ("anon_inode:kvm-vm", None),
        ("/dev/vhost-net", None),
    ],
)
def test_open_devices_pin_the_guest(target: str, movability: Movability | None):
    pin = find_process_pin({7: target}, {}, [], GIB)
    assert (pin.movability if pin else None) is movability


def test_vfio_charges_vmlck_without_an_mlocked_mapping():
    status = {"VmLck": "1048576 kB", "VmPin": "0 kB"}
    mlocked = [vma(0, GIB, flags="lo")]
    assert find_process_pin({}, status, mlocked, GIB) is None
    pin = find_process_pin({}, status, [vma(0, GIB)], GIB)
    assert pin is not None
    assert "1024 MiB" in pin.reason


def test_a_few_pages_pinned_by_io_uring_do_not_pin_the_guest():
    assert find_process_pin({}, {"VmPin": "512 kB"}, [], GIB) is None
