"""Where does QEMU put guest RAM in the guest's physical address space (x86)?

RAM is one run of bytes, cut in two: the first part starts at 0, the rest at 4 GiB.  Source:
hw/i386/pc_q35.c (pc_q35_init) and hw/i386/pc_piix.c (pc_init1) of QEMU 10.0; ``max-ram-below-4g``
changes the cut, and RAM that reaches the HyperTransport window below 1 TiB may be put above it
(hw/i386/pc.c, pc_set_amd_above_4g_mem_start): no answer in these cases.
"""

from collections.abc import Iterator
from dataclasses import dataclass

GIB = 1 << 30
FOUR_GIB = 4 * GIB
# The window is [1012 GiB, 1 TiB); PCI holes above RAM push the limit down: keep clear of both.
LOWEST_MOVED_END = 512 * GIB


@dataclass(frozen=True)
class Piece:
    """``[offset, offset + size_bytes)`` of a run of RAM and the guest-physical address of its start."""

    offset: int
    size_bytes: int
    gpa: int | None


def low_ram_bytes(machine: str | None, ram_bytes: int) -> int | None:
    """Return how much RAM lies below 4 GiB, or None for a machine type that is not known."""
    if machine is None or ram_bytes > LOWEST_MOVED_END:
        return None
    if machine == "q35" or machine.startswith("pc-q35"):
        return min(ram_bytes, 2 * GIB if ram_bytes >= 0xB0000000 else 0xB0000000)
    if machine == "pc" or machine.startswith("pc-i440fx"):
        return min(ram_bytes, 3 * GIB if ram_bytes >= 0xE0000000 else 0xE0000000)
    return None


def iter_pieces(ram_offset: int, size_bytes: int, low_bytes: int | None) -> Iterator[Piece]:
    """Cut the block at ``ram_offset`` of main RAM where its guest-physical address jumps."""
    if low_bytes is None:
        yield Piece(0, size_bytes, None)
        return
    below = min(size_bytes, max(0, low_bytes - ram_offset))
    if below:
        yield Piece(0, below, ram_offset)
    if size_bytes > below:
        yield Piece(below, size_bytes - below, FOUR_GIB + ram_offset + below - low_bytes)
