"""Which parts of a guest's memory are hot, and where are they?  A few numbers for a picture.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vmplace.model.pages import HOTTEST, GuestPages, RangePages
from vmplace.sampling.page_arrays import Bytes, NodeIndexes

CELLS = 64
"""Cells of a strip: one line of a terminal."""


@dataclass(frozen=True)
class HeatStrip:
    """One RAM range cut into equal cells, in the order of addresses.

    ``heat``: mean heat of a cell's present pages in [0, 1], None where none is present.
    ``nid``: the node that holds most of them.
    """

    hva: int
    npages: int
    page_size_bytes: int
    movability: str
    reason: str
    cell: int | None
    pages_by_node: Mapping[int, int]
    heat: tuple[float | None, ...]
    nid: tuple[int | None, ...]


def heat_strips(pages: GuestPages, cells: int = CELLS) -> tuple[HeatStrip, ...]:
    """Return a strip for each RAM range."""
    return tuple(_strip(one, pages.nids, cells) for one in pages.ranges)


def _strip(one: RangePages, nids: tuple[int, ...], cells: int) -> HeatStrip:
    edges = np.linspace(0, one.ram.npages, min(cells, one.ram.npages) + 1).astype(np.int64)
    summed = [_cell(*one.part(a, b), nids) for a, b in pairwise(edges.tolist())]
    counts = one.by_node(len(nids)).tolist()
    return HeatStrip(
        one.ram.hva,
        one.ram.npages,
        one.ram.page_size_bytes,
        one.ram.movability.value,
        one.ram.reason,
        one.ram.cell,
        dict(zip(nids, counts, strict=True)),
        tuple(heat for heat, _ in summed),
        tuple(nid for _, nid in summed),
    )


def _cell(heat: Bytes, nodes: NodeIndexes, nids: tuple[int, ...]) -> tuple[float | None, int | None]:
    present = nodes >= 0
    if not present.any():
        return None, None
    fullest = max(range(len(nids)), key=lambda index: np.count_nonzero(nodes == index))
    return round(float(heat[present].mean()) / HOTTEST, 3), nids[fullest]
