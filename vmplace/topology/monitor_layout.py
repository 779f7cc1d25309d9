"""The exact RAM layout, as QEMU's monitor tells it: ``info ramblock`` and ``info mtree -f``.

Asking the monitor taints a libvirt domain ("custom-monitor"), so it is done only where the
configuration allows it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vmplace.errors import OutsideError
from vmplace.outside import lines
from vmplace.topology.description import GuestDescription
from vmplace.topology.procfs import Vma
from vmplace.topology.ram import SMALLEST_RAM_BYTES, PlacedBlock

RAMBLOCK_LINE = re.compile(
    r" *(?P<name>\S+) +\d+ \w+ +0x[0-9a-f]+ +0x(?P<used>[0-9a-f]{1,16})"
    r" +0x[0-9a-f]+ +0x(?P<hva>[0-9a-f]{1,16}) +rw\s*"
)
FLAT_LINE = re.compile(r"\s+([0-9a-f]{16})-([0-9a-f]{16}) \(prio -?\d+, ram\): (\S+)(?: @([0-9a-f]{16}))?.*")
CELL_BACKEND = re.compile(r"(?:/objects/)?ram-node([0-9]{1,5})")
MOST_CHARACTERS = 4 << 20
LONGEST_LINE = 512


@dataclass(frozen=True)
class MonitorBlock:
    """One RAMBlock of QEMU that has no device in front: main RAM or a DIMM."""

    name: str
    hva: int
    size_bytes: int


def parse_ramblocks(text: str) -> dict[str, MonitorBlock]:
    """Parse ``info ramblock``, writable blocks by name, without those of devices and of firmware."""
    blocks = {}
    for match in filter(None, map(RAMBLOCK_LINE.fullmatch, _bounded_lines(text))):
        block = MonitorBlock(match["name"], int(match["hva"], 16), int(match["used"], 16))
        # "0000:00:01.0/vga.vram", "/rom@etc/acpi/tables"
        of_device = re.match(r"[0-9a-f]{4}:|/rom@", block.name)
        if not of_device and block.size_bytes >= SMALLEST_RAM_BYTES:
            blocks[block.name] = block
    return blocks


def parse_flat_view(text: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Parse ``info mtree -f``: runs of RAM by (block name, gpa - offset), as [start, end) of the gpa.

    Holes (the VGA window) are left inside a run: nothing is there to be found.
    """
    runs: dict[tuple[str, int], tuple[int, int]] = {}
    system = False
    for line in _bounded_lines(text):
        if line.startswith("FlatView"):
            system = False
        elif line.startswith(" AS "):
            system = system or '"memory"' in line
        elif system and (match := FLAT_LINE.fullmatch(line)):
            start, end = int(match[1], 16), int(match[2], 16) + 1
            key = match[3], start - int(match[4] or "0", 16)
            old = runs.get(key, (start, end))
            runs[key] = min(start, old[0]), max(end, old[1])
    return runs


def _bounded_lines(text: str) -> list[str]:
    """Return the lines of a monitor's answer, with QEMU's own ends."""
    if len(text) > MOST_CHARACTERS:
        raise OutsideError("the monitor's answer is too long")
    return [line.removesuffix("\r")[:LONGEST_LINE] for line in lines(text)]


def locate_exact(
    ramblocks: str, flat_view: str, candidates: Sequence[Vma], description: GuestDescription
) -> list[PlacedBlock]:
    """Return the pieces of guest RAM that both answers and the process's mappings agree on."""
    blocks = parse_ramblocks(ramblocks)
    placed = []
    for (name, delta), (start, end) in sorted(parse_flat_view(flat_view).items(), key=lambda run: run[1]):
        block = blocks.get(name)
        if block is None:
            continue
        vma = next((vma for vma in candidates if vma.start <= block.hva < vma.end), None)
        if vma is not None:
            offset = block.hva - vma.start + start - delta
            placed.append(PlacedBlock(vma, offset, end - start, start, _cell(name, start, description)))
    return placed


def _cell(name: str, gpa: int, description: GuestDescription) -> int | None:
    if match := CELL_BACKEND.fullmatch(name):
        return int(match[1])
    by_gpa: Mapping[int, int | None] = {
        block.gpa: block.cell for block in description.blocks if block.gpa is not None
    }
    return by_gpa.get(gpa)
