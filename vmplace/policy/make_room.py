"""Which pages leave a node so that another guest fits there (fit.py)?  The coldest first.

Two passes over a guest's units, in chunks: the first counts those on the node by heat, which tells up to
which heat they leave; the second picks them.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from vmplace.model.pages import GuestPages
from vmplace.model.units import Units
from vmplace.policy.fit import Eviction
from vmplace.policy.plan import GuestView, Move
from vmplace.policy.spread import HUGE_PAGES
from vmplace.topology.guest import PAGE_BYTES, Movability


def room_moves(
    guests: Iterable[GuestView], evictions: Iterable[Eviction], budget_bytes: int | None
) -> tuple[Move, ...]:
    """Return the moves that carry the evictions out, as many as the budget allows, cheapest first."""
    pages = {guest.topology.name: guest.pages for guest in guests}
    left = 1 << 62 if budget_bytes is None else budget_bytes
    taken: dict[tuple[str, int], int] = {}
    moves = []
    for one in evictions:
        known, key = pages.get(one.guest), (one.guest, one.from_nid)
        if known is None or left < PAGE_BYTES:
            continue
        size = min(one.size_bytes, left)
        move = _move(known, one, skip=taken.get(key, 0), npages=size // PAGE_BYTES)
        taken[key] = taken.get(key, 0) + move.size_bytes // PAGE_BYTES
        left -= move.size_bytes
        moves += [move] if len(move.hva) else []
    return tuple(moves)


def _move(pages: GuestPages, one: Eviction, *, skip: int, npages: int) -> Move:
    """Return the move of the coldest ``npages`` pages on the node, after the ``skip`` that others take."""
    units = _coldest(pages, pages.nids.index(one.from_nid), skip + npages)
    upto = np.cumsum(units.count)
    units = units.some((upto > skip) & (upto - units.count < skip + npages))
    size = units.count.astype(np.uint16)
    leave, go = (np.full(len(size), nid, np.int16) for nid in (one.from_nid, one.to_nid))
    return Move(one.guest, units.hva.astype(np.uint64), size, leave, go, one.reason)


def _coldest(pages: GuestPages, node: int, npages: int) -> Units:
    """Return single units, coldest first, that make up ``npages``; ``count``: their 4 KiB pages."""
    counts = np.zeros(256, np.int64)
    for units in _on_node(pages, node):
        counts += np.bincount(units.heat, units.count * _size(units), 256).astype(np.int64)
    upto = np.cumsum(counts)
    warmest = int(np.searchsorted(upto, npages))
    # Of the warmest that leave, only as many as are needed: they may be most of the guest.
    left = npages - int(upto[warmest - 1] if warmest else 0)
    found = []
    for units in _on_node(pages, node):
        edge = units.some(units.heat == warmest)
        before = (np.cumsum(edge.count) - edge.count) * _size(edge)
        edge = edge.some(before < left)
        single = edge.singly()[0]
        single = single.some(np.arange(len(single.hva)) * _size(edge) < left)
        left -= len(single.hva) * _size(edge)
        found += [units.some(units.heat < warmest).singly()[0], single]
    return _coldest_first(found)


def _on_node(pages: GuestPages, node: int) -> Iterator[Units]:
    for one in pages.ranges:
        if one.ram.movability is Movability.MOVABLE:
            for units in one.units():
                yield units.some(units.node_index == node)


def _size(units: Units) -> int:
    return HUGE_PAGES if units.huge else 1


def _coldest_first(found: list[Units]) -> Units:
    hva = np.concatenate([np.zeros(0, np.int64), *(one.hva for one in found)])
    size = np.concatenate([np.zeros(0, np.int64), *(one.count * _size(one) for one in found)])
    heat = np.concatenate([np.zeros(0, np.uint8), *(one.heat for one in found)])
    node = np.concatenate([np.zeros(0, np.int8), *(one.node_index for one in found)])
    return Units(hva, size, False, heat, node).some(np.argsort(heat, kind="stable"))
