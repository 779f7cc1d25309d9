"""Which pages of a range must move so that the range follows given weights, hottest first, evenly spread?

Pages are put into strata by heat class and page size; every stratum follows the weights on its own, so
that not only the memory but also the traffic is spread.  Two passes over the flat arrays, in chunks so
that a 16 GiB range needs no more working memory than a 256 MiB one:

1. count pages by (stratum, node); what exceeds a node's weight is excess, what lacks is deficit;
2. pick the excess at even distances (no node keeps one contiguous piece) and distribute it to the nodes
   with a deficit by the golden-ratio sequence, hottest stratum first, until the limit is reached.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vmplace.model.pages import HOT
from vmplace.model.units import Units
from vmplace.sampling.page_arrays import Bytes, Indexes, NodeIndexes
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES

Counts = npt.NDArray[np.float64]

HEAT_CLASSES = np.array([HOT, HOT // 2, 1])
"""Seen in the last window, in the one before, ever; what is below was never seen."""
CLASS_OF_HEAT = np.searchsorted(-HEAT_CLASSES, -np.arange(256)).astype(np.uint8)
STRATA = 2 * (len(HEAT_CLASSES) + 1)
HUGE_PAGES = HUGE_BYTES // PAGE_BYTES
GOLDEN = 0.6180339887498949
TOLERANCE = 0.05
"""A node may deviate by this share of its weight before pages are moved to and fro for it."""


class Placed(Protocol):
    """Pages that are somewhere: all of a range, or some of them."""

    def units(self) -> Iterator[Units]:
        """Yield what can move, in chunks."""
        ...

    def elsewhere(self, node: int, /) -> "Placed":
        """Return those that are not on the node of this index."""
        ...


@dataclass(frozen=True)
class Picked:
    """Units to move: address, 4 KiB pages per entry, and node indexes before and after."""

    hva: Indexes
    npages: npt.NDArray[np.uint16]
    source: NodeIndexes
    target: NodeIndexes


_Dealt = tuple[Indexes, npt.NDArray[np.uint16], NodeIndexes, NodeIndexes]
"""What ``Picked`` has, of one stratum."""


def count_strata(pages: Placed, nodes: int) -> Counts:
    """Return how many 4 KiB pages each (stratum, node index) holds; hottest strata first."""
    counts = np.zeros(STRATA * nodes)
    for units in pages.units():
        flat = _stratum(units).astype(np.int64) * nodes + units.node_index
        counts += np.bincount(flat, units.count, STRATA * nodes)
    by_node: Counts = counts.reshape(STRATA, nodes)
    by_node[1::2] *= HUGE_PAGES
    return by_node


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
    left, seen = _allowed_by_stratum(excess, limit), np.zeros_like(counts)
    found: list[list[Units]] = [[] for _ in range(STRATA)]
    for units in pages.units():
        share[left <= 0] = 0.0
        if not share.any():
            break
        for stratum, chosen in _iter_chosen(units, share, seen, left):
            found[stratum].append(chosen)
    strata = [one for one in range(STRATA) if found[one]] or [0]
    distributed = [_distributed(one, found[one], deficit[one]) for one in strata]
    hva, npages, source, target = (np.concatenate(part) for part in zip(*distributed, strict=True))
    return Picked(hva, npages, source, target)


def _stratum(units: Units) -> Bytes:
    return CLASS_OF_HEAT[units.heat] * np.uint8(2) + np.uint8(units.huge)


def _allowed_by_stratum(excess: Counts, limit: int) -> Counts:
    """Return how many units each stratum may move when the limit is spent on the hottest first."""
    upto = np.minimum(np.cumsum(np.rint(excess.sum(axis=1))), limit)
    allowed: Counts = np.diff(upto, prepend=0.0)
    allowed[1::2] //= HUGE_PAGES
    return allowed


def _iter_chosen(units: Units, share: Counts, seen: Counts, left: Counts) -> Iterator[tuple[int, Units]]:
    """Yield by stratum what to take so that each node gives its share, at even distances.

    ``seen``, units by stratum and node, and ``left``, what a stratum may still move, go on across chunks.
    """
    stratum = _stratum(units)
    for one in np.flatnonzero(share.any(axis=1)).tolist():
        mine = units.some(stratum == one)
        rank = _ranks(mine, seen[one])
        chosen = _evenly(mine, rank, share[one][mine.node_index], int(left[one]))
        left[one] -= len(chosen.hva)
        yield one, chosen


def _ranks(units: Units, seen: Counts) -> Counts:
    """Return how many units of its node come before each run; adds to ``seen``, by node."""
    rank = np.zeros(len(units.hva))
    for node in range(len(seen)):
        mine = units.node_index == node
        upto = seen[node] + np.cumsum(units.count[mine])
        rank[mine] = upto - units.count[mine]
        seen[node] = upto[-1] if len(upto) else seen[node]
    return rank


def _evenly(units: Units, rank: Counts, share: Counts, most: int) -> Units:
    """Return single units of the runs: of each node its ``share``, by run; the first ``most`` of them."""
    number = _due(rank + units.count, share) - _due(rank, share)
    some = np.flatnonzero((number > 0) & (np.cumsum(number) - number < most))
    single, inside = units.some(some).singly()
    rank, share = (np.repeat(one[some], units.count[some]) for one in (rank, share))
    rank += inside
    return single.some(np.flatnonzero(_due(rank + 1, share) > _due(rank, share))[:most])


def _due(rank: Counts, share: Counts) -> Counts:
    """Return how many of the first ``rank`` units are to be taken."""
    due: Counts = np.floor(rank * share + 0.5)
    return due


def _distributed(stratum: int, found: list[Units], deficit: Counts) -> _Dealt:
    """Distribute the units of a stratum to the nodes of its deficit: exact shares, in golden-ratio order."""
    hva = np.concatenate([np.zeros(0, np.int64), *(one.hva for one in found)])
    source = np.concatenate([np.zeros(0, np.int8), *(one.node_index for one in found)])
    target = np.zeros(len(hva), np.int8)
    if len(hva):
        order = np.argsort(np.arange(1, len(hva) + 1) * GOLDEN % 1.0)
        upto = np.rint(np.cumsum(deficit) / deficit.sum() * len(hva)).astype(np.int64)
        target[order] = np.repeat(np.arange(len(deficit)), np.diff(upto, prepend=0))
    return hva, np.full(len(hva), HUGE_PAGES if stratum % 2 else 1, np.uint16), source, target


def weights_by_index(weights: Mapping[int, float], nids: tuple[int, ...]) -> Counts:
    """Return ``weights`` (by nid) in the order of ``nids``."""
    return np.array([weights.get(nid, 0.0) for nid in nids])
