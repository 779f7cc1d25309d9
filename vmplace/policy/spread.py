"""Which pages of a range must move so that the range follows given weights, hottest first, evenly spread?

Pages are put into strata by heat class and page size; every stratum follows the weights on its own, so
that not only the memory but also the traffic is spread.  Two passes over the flat arrays, in chunks so
that a 16 GiB range needs no more working memory than a 256 MiB one:

1. count pages by (stratum, node); what exceeds a node's weight is excess, what lacks is deficit;
2. pick the excess at even distances (no node keeps one contiguous piece) and deal it out to the nodes
   with a deficit by the golden-ratio sequence, hottest stratum first, until the limit is reached.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vmplace.model.pages import HOT, Units
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES

Counts = npt.NDArray[np.float64]
Indexes = npt.NDArray[np.int64]

HEAT_CLASSES = np.array([HOT, HOT // 2, 1])
"""Seen in the last window, in the one before, ever; what is below was never seen."""
STRATA = 2 * (len(HEAT_CLASSES) + 1)
HUGE_PAGES = HUGE_BYTES // PAGE_BYTES
GOLDEN = 0.6180339887498949
TOLERANCE = 0.05
"""A node may deviate by this share of its weight before pages are moved to and fro for it."""


class Placed(Protocol):
    """Pages that are somewhere: of a range, or what was touched of it."""

    def units(self) -> Iterator[Units]:
        """Yield what can move, in chunks."""
        ...

    def hva_of(self, index: Indexes, /) -> Indexes:
        """Return the address of each, by its index."""
        ...

    def elsewhere(self, node: int, /) -> "Placed":
        """Return those that are not on the node of this index."""
        ...


@dataclass(frozen=True)
class Picked:
    """Pages to move: index among them, 4 KiB pages per entry, and node indexes before and after."""

    page: Indexes
    npages: npt.NDArray[np.uint16]
    source: npt.NDArray[np.int8]
    target: npt.NDArray[np.int8]


@dataclass(frozen=True)
class _Chunk:
    """The movable units of one chunk: page index, stratum, node index."""

    page: Indexes
    stratum: Indexes
    node: Indexes


def count_strata(pages: Placed, nodes: int) -> Counts:
    """Return how many 4 KiB pages each (stratum, node index) holds; hottest strata first."""
    counts = np.zeros((STRATA, nodes))
    for chunk in _iter_chunks(pages):
        flat = np.bincount(chunk.stratum * nodes + chunk.node, minlength=STRATA * nodes)
        counts += flat.reshape(STRATA, nodes)
    counts[1::2] *= HUGE_PAGES
    return counts


def excess_and_deficit(counts: Counts, weights: Counts, room: Counts) -> tuple[Counts, Counts]:
    """Return the pages that should leave and those that should come, both by (stratum, node).

    ``weights`` sum to 1; ``room`` is how many pages each node can still take, shared by all strata with
    the hottest first.  Deviations below TOLERANCE stay, except on nodes that should hold nothing.
    """
    wanted = counts.sum(axis=1, keepdims=True) * weights
    surplus = counts - wanted
    settled = np.all(np.abs(surplus) <= np.maximum(TOLERANCE * wanted, 0.5), axis=1, keepdims=True)
    surplus = np.where(settled, 0.0, surplus)
    excess, deficit = np.maximum(surplus, 0.0), np.maximum(-surplus, 0.0)
    taken = np.minimum(np.cumsum(deficit, axis=0), room)
    deficit = np.diff(taken, axis=0, prepend=0.0)
    total = excess.sum(axis=1, keepdims=True)
    scale = np.divide(deficit.sum(axis=1, keepdims=True), total, out=np.zeros_like(total), where=total > 0)
    return excess * scale, deficit


def pick(pages: Placed, counts: Counts, excess: Counts, deficit: Counts, limit: int) -> Picked:
    """Return the units that make up ``excess``, hottest stratum first, at most ``limit`` 4 KiB pages."""
    share = np.divide(excess, counts, out=np.zeros_like(excess), where=counts > 0)
    allowed = _allowed_by_stratum(excess, limit)
    seen, dealt = np.zeros_like(counts), np.zeros(STRATA)
    found: list[tuple[Indexes, Indexes, Indexes]] = []
    for chunk in _iter_chunks(pages):
        chosen = _evenly(chunk, share, seen)
        kept = _within(chunk.stratum[chosen], dealt, allowed)
        where = np.flatnonzero(chosen)[kept]
        found.append((chunk.page[where], chunk.stratum[where], chunk.node[where]))
    page, stratum, source = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(stratum, kind="stable")
    return _dealt(page[order], stratum[order], source[order], deficit)


def _iter_chunks(pages: Placed) -> Iterator[_Chunk]:
    for units in pages.units():
        heat_class = np.searchsorted(-HEAT_CLASSES, -units.heat.astype(np.int64))
        yield _Chunk(units.index, 2 * heat_class + units.huge, units.node_index.astype(np.int64))


def _allowed_by_stratum(excess: Counts, limit: int) -> Counts:
    """Return how many units each stratum may move when the limit is spent on the hottest first."""
    upto = np.minimum(np.cumsum(np.rint(excess.sum(axis=1))), limit)
    allowed: Counts = np.diff(upto, prepend=0.0)
    allowed[1::2] //= HUGE_PAGES
    return allowed


def _evenly(chunk: _Chunk, share: Counts, seen: Counts) -> npt.NDArray[np.bool_]:
    """Return which units to take so that each (stratum, node) gives its share, at even distances."""
    chosen = np.zeros(len(chunk.page), bool)
    for stratum, node in zip(*np.nonzero(share), strict=True):
        mine = np.flatnonzero((chunk.stratum == stratum) & (chunk.node == node))
        rank = seen[stratum, node] + np.arange(len(mine) + 1)
        chosen[mine] = np.diff(np.floor(rank * share[stratum, node] + 0.5)) > 0
        seen[stratum, node] += len(mine)
    return chosen


def _within(stratum: Indexes, dealt: Counts, allowed: Counts) -> npt.NDArray[np.bool_]:
    """Return which of the chosen fit what their stratum may move; ``dealt`` counts on across chunks."""
    kept = np.zeros(len(stratum), bool)
    for one in np.unique(stratum):
        mine = np.flatnonzero(stratum == one)
        fits = int(min(len(mine), allowed[one] - dealt[one]))
        kept[mine[:fits]] = True
        dealt[one] += fits
    return kept


def _dealt(page: Indexes, stratum: Indexes, source: Indexes, deficit: Counts) -> Picked:
    """Deal the pages out to the nodes of their stratum's deficit: exact shares, in golden-ratio order."""
    target = np.zeros(len(page), np.int8)
    for one in np.unique(stratum):
        mine = np.flatnonzero(stratum == one)
        point = (np.arange(1, len(mine) + 1) * GOLDEN) % 1.0
        upto = np.rint(np.cumsum(deficit[one]) / deficit[one].sum() * len(mine))
        target[mine[np.argsort(point)]] = np.searchsorted(upto, np.arange(len(mine)), side="right")
    npages = np.where(stratum % 2, HUGE_PAGES, 1).astype(np.uint16)
    return Picked(page, npages, source.astype(np.int8), target)


def weights_by_index(weights: Mapping[int, float], nids: tuple[int, ...]) -> Counts:
    """Return ``weights`` (by nid) in the order of ``nids``."""
    return np.array([weights.get(nid, 0.0) for nid in nids])
