"""Hosts, guests and what was seen of their pages, made up for tests of policies."""

from dataclasses import replace

import numpy as np

from tests.unit.model.known_pages import known_pages, with_history
from vmplace.model.pages import GuestPages
from vmplace.policy.plan import GuestSettings, GuestView, PlacementPlan
from vmplace.sampling.page_arrays import Indexes
from vmplace.sampling.sample import NodeBits
from vmplace.topology.guest import GuestTopology, Movability, RamRange, Vcpu
from vmplace.topology.host import HostTopology, Node

GIB = 1 << 30
NPAGES = 4096
HVA = 0x7F00_0000_0000
NOTHING = range(0)


def host(
    nids: tuple[int, ...] = (0, 1, 2, 3), cpuless: tuple[int, ...] = (), **extra: object
) -> HostTopology:
    nodes = tuple(Node(n, () if n in cpuless else (2 * n, 2 * n + 1), 4 * GIB, 3 * GIB) for n in nids)
    distances = {(a, b): 10 if a == b else 20 for a in nids for b in nids}
    return replace(HostTopology(nodes, distances), **extra)  # type: ignore[arg-type]


def ram(cell: int | None = None, hva: int = HVA, movability: Movability = Movability.MOVABLE) -> RamRange:
    return RamRange(hva, NPAGES, None, 4096, movability, "reason of the range", cell)


def guest_view(
    cpus: list[int], nodes: np.ndarray | int, *, ranges: list[RamRange] | None = None,
    heat: np.ndarray | int = 200, huge: int = 0, settings: GuestSettings | None = None,
) -> GuestView:  # fmt: skip
    ranges = ranges or [ram()]
    cells = len(ranges) > 1
    vcpus = tuple(Vcpu(i, 100 + i, (cpu,), i % len(ranges) if cells else None) for i, cpu in enumerate(cpus))
    pages = tuple(
        known_pages(
            one,
            np.full(NPAGES, 0, np.uint8) + np.asarray(heat, np.uint8),
            np.full(NPAGES, 0, np.int8) + np.asarray(nodes, np.int8),
            np.full(NPAGES // 512 + 1, huge, np.uint8),
        )
        for one in ranges
    )
    topology = GuestTopology("db1", 42, 7, "kvm", vcpus, tuple(ranges))
    return GuestView(topology, GuestPages("db1", (0, 1, 2, 3), 1, pages), settings or GuestSettings())


def bits(touched: dict[int, range] | dict[int, Indexes], written: range | Indexes = NOTHING) -> NodeBits:
    """Return which pages node indexes touched; node 0 did the writing."""
    rows = np.zeros((5, NPAGES), np.uint8)
    for index, pages in touched.items():
        rows[index, pages] = 1
    writes = np.zeros((5, NPAGES), np.uint8)
    writes[0, written] = 1
    accessed, written_too = (
        np.packbits(one, axis=1, bitorder="little").view(np.uint64) for one in (rows, writes)
    )
    return NodeBits(accessed, written_too)


def view(*windows: NodeBits, huge: int = 0, sampled: bool = False) -> GuestView:
    seen = guest_view([0, 2, 4, 6], 0, huge=huge)
    assert seen.pages
    ranges = tuple(replace(with_history(pages, *windows), sampled=sampled) for pages in seen.pages.ranges)
    return replace(seen, pages=replace(seen.pages, ranges=ranges))


def moved(result: PlacementPlan) -> dict[int, set[int]]:
    """Return the pages that move, by their new node."""
    found: dict[int, set[int]] = {}
    for move in result.moves:
        for hva, nid in zip(move.hva.tolist(), move.to_nid.tolist(), strict=True):
            found.setdefault(nid, set()).add((hva - HVA) // 4096)
    return found
