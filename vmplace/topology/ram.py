"""Which mappings of a VMM are guest RAM, and where in the guest do they lie?

1. Candidates are readable, writable, not executable mappings: no heap, no stack, no small ones.
2. With a description, each RAM block is the mapping of its size.  Blocks of one size are distinguished
   by address: a VMM makes them in order, and the kernel hands out addresses from the top down
   (mm/mmap.c, unmapped_area_topdown), so the first block has the highest address.
3. Without one, or if sizes do not match, the large candidates are RAM whose place in the guest is
   unknown.  QEMU keeps guest memory out of its children (MADV_DONTFORK, softmmu/physmem.c): where
   mappings bear this mark, only they count.

Limits: 2 is inference.  What QEMU itself says (monitor_layout.py) is exact, but taints the domain.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from vmplace.topology.description import GuestDescription, RamBlock
from vmplace.topology.gfn import iter_pieces, low_ram_bytes
from vmplace.topology.guest import PAGE_BYTES, RamRange
from vmplace.topology.movability import Immovable, classify
from vmplace.topology.procfs import Vma

# Below: ROMs, firmware tables, arenas of malloc.
SMALLEST_RAM_BYTES = 1 << 20
# Video memory (16 MiB in QEMU) is no guest RAM; a cell of a vNUMA guest is.
SMALLEST_SHARE = 1 / 8


@dataclass(frozen=True)
class PlacedBlock:
    """A piece of guest RAM in its mapping.  ``offset`` is that of the piece in the mapping."""

    vma: Vma
    offset: int
    size_bytes: int
    gpa: int | None
    cell: int | None


def select_candidates(vmas: Iterable[Vma]) -> list[Vma]:
    """Return the mappings that may be guest RAM, highest address first, neighbours of one kind joined."""
    found = [vma for vma in vmas if vma.perms.startswith("rw-") and not vma.path.startswith("[")]
    joined: list[Vma] = []
    for vma in sorted(found, key=lambda vma: vma.start):
        # A memory policy on part of a block splits its mapping.
        if joined and _continues(joined[-1], vma):
            joined[-1] = replace(joined[-1], end=vma.end)
        else:
            joined.append(vma)
    return [vma for vma in reversed(joined) if vma.size_bytes >= SMALLEST_RAM_BYTES]


def locate_ram(candidates: Sequence[Vma], description: GuestDescription | None) -> list[PlacedBlock]:
    """Return the pieces of guest RAM, in the order of the description where there is one."""
    marked = [vma for vma in candidates if "dc" in vma.flags] or list(candidates)
    if description is not None and description.blocks:
        placed = _match_blocks(marked, description)
        if placed is not None:
            return placed
    # Linux 6.7 marks the stacks of threads so (include/linux/mman.h, MAP_STACK).
    large = [vma for vma in marked if "nh" not in vma.flags] or marked
    limit = max((vma.size_bytes for vma in large), default=0) * SMALLEST_SHARE
    return [PlacedBlock(vma, 0, vma.size_bytes, None, None) for vma in large if vma.size_bytes >= limit]


def build_ranges(placed: Iterable[PlacedBlock], pin: Immovable | None) -> tuple[RamRange, ...]:
    """Return the ranges with their movability; ``pin`` outweighs what the mapping says."""
    ranges = []
    for block in placed:
        movability, reason = (pin.movability, pin.reason) if pin else classify(block.vma)
        ranges.append(
            RamRange(
                hva=block.vma.start + block.offset,
                npages=block.size_bytes // PAGE_BYTES,
                base_gfn=None if block.gpa is None else block.gpa // PAGE_BYTES,
                page_size_bytes=block.vma.page_size_bytes,
                movability=movability,
                reason=reason,
                cell=block.cell,
            )
        )
    return tuple(ranges)


def _continues(below: Vma, above: Vma) -> bool:
    return below.end == above.start and (below.perms, below.path, below.page_size_bytes, below.flags) == (
        above.perms,
        above.path,
        above.page_size_bytes,
        above.flags,
    )


def _match_blocks(candidates: Sequence[Vma], description: GuestDescription) -> list[PlacedBlock] | None:
    """Return the pieces of every block, or None unless each block has exactly one mapping."""
    by_size: defaultdict[int, list[Vma]] = defaultdict(list)
    for vma in candidates:
        by_size[vma.size_bytes].append(vma)
    wanted: defaultdict[int, int] = defaultdict(int)
    sizes = [_mapped_bytes(block, candidates) for block in description.blocks]
    for size in sizes:
        wanted[size] += 1
    if any(len(by_size[size]) != count for size, count in wanted.items()):
        return None
    vmas = [by_size[size].pop(0) for size in sizes]
    return list(_iter_placed(description, vmas))


def _mapped_bytes(block: RamBlock, candidates: Sequence[Vma]) -> int:
    """Return the length of the block's mapping: QEMU rounds it up to the page size of its backing."""
    page_sizes = {vma.page_size_bytes for vma in candidates} | {PAGE_BYTES}
    rounded = (-(-block.size_bytes // size) * size for size in sorted(page_sizes))
    lengths = {vma.size_bytes for vma in candidates}
    return next((size for size in rounded if size in lengths), block.size_bytes)


def _iter_placed(description: GuestDescription, vmas: Sequence[Vma]) -> Iterator[PlacedBlock]:
    main = sum(block.size_bytes for block in description.blocks if block.gpa is None)
    low = low_ram_bytes(description.machine, main)
    offset = 0
    for block, vma in zip(description.blocks, vmas, strict=True):
        if block.gpa is not None:
            yield PlacedBlock(vma, 0, block.size_bytes, block.gpa, block.cell)
            continue
        for piece in iter_pieces(offset, block.size_bytes, low):
            yield PlacedBlock(vma, piece.offset, piece.size_bytes, piece.gpa, block.cell)
        offset += block.size_bytes
