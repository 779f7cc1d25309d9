"""What do a guest's page statistics tell a plan: which entries are used from where, how hotly, and written?

1. Asked are entries (touched_pages.py): small pages, huge pages, and blocks of small pages that are alike.
2. Heat is accesses expected within ``HORIZON_S``, the time that the rate of a page remembers: from the rate
   where bits are read several times a window, else from the windows in which each node touched it.  Where a
   source samples accesses it comes from these, of as many windows as tell of now (remembered.py), each
   entry's own as far as chance explains no more (credibility.py).  Where there are bits and samples, both
   tell which nodes share an entry.
3. Few windows show how nodes share a page, or that they do.  Where the pages around it differ no more than
   chance explains, it counts as shared as they are: else plans would follow chance, and pages that all
   nodes use alike would move in each window.
4. Whether a page is written is what use_fused.py makes of bits, and of the pages around.  A sampling source
   misses most writes: there a page counts as written if one write is to be expected by its samples.

5. So much is known of at most so many small pages one by one: memory and time of a plan are bounded by that
   (coarse_blocks.py).

A source that sees no nodes gives no evidence (None): a plan that cannot know better leaves pages alone.
"""

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from vmplace.model.heat_horizon import HORIZON_S, SHORTEST_S, watched_s
from vmplace.model.metrics import Matrix
from vmplace.model.pages import HISTORY_WINDOWS, GuestPages, RangePages
from vmplace.model.remembered import Memory, memories_of
from vmplace.model.sampled_entries import SampleUnits, believed, sample_units, shared_as_sampled
from vmplace.model.sampled_heat import newest_rates, sampled_heat, written_by_samples
from vmplace.model.touched_blocks import touched_pages
from vmplace.model.touched_pages import HUGE_PAGES, TouchedPages
from vmplace.model.use_fused import block_heat, fused_written
from vmplace.sampling.page_arrays import Bools, Indexes, NodeIndexes
from vmplace.topology.guest import Movability

MIN_WINDOWS = 2
"""Fewer say nothing: what was touched once, nobody knows to be touched again."""
NEAR_BLOCKS = 16
"""32 MiB: huge pages that tell of each other."""
PRIVATE_AT_FIRST = 4.0
"""So many pages of a block are taken to be private at first: one that is shared proves little."""
CHUNK_UNITS = 32


@dataclass(frozen=True)
class Entries:
    """Evidence of one guest with E entries on N nodes; ``pages`` are their ranges, entries in their order.

    ``heat[E, N]``: accesses expected within HORIZON_S.  ``recent[E, N]``: those of the newest window, as
    far as it tells."""

    pages: tuple[TouchedPages, ...]
    heat: Matrix
    recent: Matrix
    written: Bools
    node: NodeIndexes
    sizes: Matrix

    @property
    def apart(self) -> int:
        """Return how many entries are a small page each."""
        return sum(one.edge for one in self.pages)

    @property
    def coarse(self) -> int:
        """Return how many entries are a block of pages that differ."""
        return sum(len(one.coarse) for one in self.pages)

    @property
    def starts(self) -> list[int]:
        """Return where the entries of each range begin, and the end."""
        return [0, *accumulate(one.entries for one in self.pages)]


def entries_of(guest: GuestPages, window_s: float, most: int | None = None) -> Entries | None:
    """Return the evidence of what can move, None where the source does not see nodes or saw too little.

    ``window_s``: how long windows last whose length is not known.
    ``most``: about so many small pages are looked at one by one, None: all that differ.
    """
    lengths_s = guest.lengths_s or (window_s,) * HISTORY_WINDOWS
    memories = memories_of(guest.ranges)
    memory = max((one.windows for one in memories.values()), default=0)
    rated = zip(guest.ranges, newest_rates(guest, lengths_s, memory), strict=True)
    found: dict[int, Entries] = {}
    # The small ranges first: what they leave is the others'.
    for rest, (one, rate_now) in enumerate(sorted(rated, key=lambda rated: rated[0].ram.npages)):
        share = None if most is None else max(most, 0) // (len(guest.ranges) - rest)
        part = _of_range(one, lengths_s, share, memories.get(one.ram.hva, Memory()), rate_now)
        if part is not None:
            found[one.ram.hva] = part
            most = None if most is None else most - part.pages[0].edge
    parts = [found[one.ram.hva] for one in guest.ranges if one.ram.hva in found]
    if len(parts) < 2:
        return parts[0] if parts else None
    return Entries(
        tuple(page for one in parts for page in one.pages),
        np.concatenate([one.heat for one in parts]),
        np.concatenate([one.recent for one in parts]),
        np.concatenate([one.written for one in parts]),
        np.concatenate([one.node for one in parts]),
        np.concatenate([one.sizes for one in parts]),
    )


def _of_range(
    one: RangePages, lengths_s: tuple[float, ...], most: int | None, memory: Memory, rate_now: float
) -> Entries | None:
    if one.ram.movability is not Movability.MOVABLE or one.history < MIN_WINDOWS:
        return None
    pages = touched_pages(replace(one, counted=one.counted[: memory.windows]), most)
    if pages is None:
        return None
    sizes = pages.sizes.astype(np.float64)
    by_samples = pages.counted and pages.sampled
    seen_s = max(watched_s(lengths_s, pages.windows), SHORTEST_S)
    units = sample_units(pages) if by_samples else None
    if units is None:
        heat = _heat_of_bits(pages, sizes, seen_s)
    else:
        heat = sampled_heat(pages, lengths_s, units, memory.changed, rate_now)
    if pages.counted and not pages.sampled:
        heat = _weighed(pages, heat)
    if not pages.sampled:
        heat = _credited(pages, heat, seen_s)
    if pages.counted and not pages.sampled:
        heat = shared_as_sampled(pages, heat)
    written = written_by_samples(pages, one.stored) if pages.sampled else fused_written(pages)
    # Copies are of blocks that lie on one node as a whole.
    written[pages.coarse] |= one.nodes.is_mixed[pages.blocks[pages.whole[pages.coarse - pages.edge]]]
    node = pages.node_index.copy()
    node[~pages.exists] = -1
    recent = _of_newest(pages, heat, lengths_s[0], units)
    heat[node < 0] = 0.0
    return Entries((pages,), heat, recent, written, node, sizes)


def _of_newest(pages: TouchedPages, heat: Matrix, window_s: float, units: SampleUnits | None) -> Matrix:
    """Return the accesses [E, N] of the newest window alone: it had no part in what was moved before it.

    Of a page that its usual nodes did not touch this time, all are of those that did.
    """
    if units is not None:
        return believed(pages, pages.counted.newest(1), units)
    newest = np.unpackbits(pages.newest, axis=1, count=len(heat)).T.astype(np.float64)
    recent: Matrix = heat * newest
    by_row = np.ones(pages.nodes)
    total, left = heat @ by_row, recent @ by_row
    others = (left * 2 < total).nonzero()[0]
    if len(others):
        users = newest[others]
        recent[others] = users * (total[others] / np.maximum(users @ by_row, 1.0))[:, None]
    recent *= window_s / HORIZON_S
    return recent


def _heat_of_bits(pages: TouchedPages, sizes: Matrix, watched_s: float) -> Matrix:
    heat, counts_for = np.zeros((pages.entries, pages.nodes)), HORIZON_S * sizes
    for node in pages.users:
        rate = pages.rate_of(node)
        if rate is None:
            rate = (pages.touches[node] / watched_s).astype(np.float32)
        heat[:, node] = rate * counts_for
    return heat


def _credited(pages: TouchedPages, heat: Matrix, watched_s: float) -> Matrix:
    """Return the heat of shared pages distributed as it is around them, as far as chance explains it.

    In each of the n windows that are remembered a page tells a share of s once: chance makes what is seen
    scatter by s (1 - s) / n.  How far a page is believed beyond that: as in credibility.py.
    """
    if len(pages.users) < 2:
        return heat
    # As a product: np.count_nonzero by rows takes four times as long.
    shared = np.flatnonzero((heat != 0) @ np.ones(pages.nodes) > 1)
    if not len(shared):
        return heat
    if pages.windows < HISTORY_WINDOWS:
        _count_as_shared(pages, heat, watched_s)
    first = _firsts(pages, shared)
    size = np.diff(np.append(first, len(shared)))[:, None]
    unit = np.repeat(np.arange(len(first)), size[:, 0])
    share = heat.take(shared, axis=0)
    total = share @ np.ones((pages.nodes, 1))
    share /= total
    usual = np.add.reduceat(share, first) / size
    apart = share - usual.take(unit, axis=0)
    due = np.add.reduceat(share * (1 - share), first) / size / HISTORY_WINDOWS
    # A page is part of what is around it.
    alone = np.maximum(1 - 1 / size, 1 / size)
    beyond = np.maximum(np.add.reduceat(apart * apart, first) / size / alone - due, 0.0)
    doubt = np.divide(due, beyond + due, out=np.zeros_like(due), where=due > 0)
    apart *= doubt.take(unit, axis=0)
    share -= apart
    share *= total
    heat[shared] = share
    return heat


def _count_as_shared(pages: TouchedPages, heat: Matrix, watched_s: float) -> None:
    """Have pages that were seen from one node count as shared, as far as chance explains that (in place).

    For as long as fewer windows are known than are remembered: later what a page shows is its own.
    """
    touched = np.flatnonzero(heat.any(axis=1))
    # Where rates are known they may say less than once of a page that was touched.
    times = np.maximum(heat.sum(axis=1) / pages.sizes * (watched_s / HORIZON_S), 1.0)
    first = _firsts(pages, touched)
    ends = np.append(first[1:], len(touched))
    # So many units at a time that what this takes is little beside what is known.
    for some in np.split(np.arange(len(first)), range(CHUNK_UNITS, len(first), CHUNK_UNITS)):
        mine = touched[first[some[0]] : ends[some[-1]]]
        heat[mine] = _as_shared(heat[mine], times[mine], first[some] - first[some[0]])


def _as_shared(heat: Matrix, times: npt.NDArray[np.float64], first: Indexes) -> Matrix:
    """Return the heat [P, N] of pages in units that begin at ``first``; each was touched so many ``times``.

    Where pages around are shared with shares s, one that was touched n times is seen from node j alone with a
    chance of s_j ** n.  How many there would be, if all were shared, tells which part of the unit is private
    by what there are beyond that; so does how far each of them is taken to be.

    Example: of six pages four were seen from both of two nodes.  The fifth was touched once, which says
    nothing of whose it is; the sixth was touched eight times from node 0 alone.

    >>> heat = np.array([[4.0, 4.0]] * 4 + [[1.0, 0.0], [8.0, 0.0]])
    >>> _as_shared(heat, np.array([8, 8, 8, 8, 1, 8]), np.zeros(1, int))[4:].round(2).tolist()
    [[0.86, 0.14], [7.99, 0.01]]
    """
    size = np.diff(np.append(first, len(heat)))
    total, alone = heat.sum(axis=1, keepdims=True), np.count_nonzero(heat, axis=1) == 1
    share = heat / total
    many = size - np.add.reduceat(alone, first)
    usual = np.add.reduceat(np.where(alone[:, None], 0.0, share), first) / np.maximum(many, 1)[:, None]
    usual = np.repeat(usual, size, axis=0)
    by_chance = usual ** times[:, None]
    expected = np.add.reduceat(by_chance.sum(axis=1), first)
    private = (size - many - expected + PRIVATE_AT_FIRST) / (size - expected + PRIVATE_AT_FIRST)
    private = np.repeat(np.where(many > 0, np.clip(private, 0.0, 1.0), 1.0), size)
    chance = (1 - private) * by_chance[np.arange(len(share)), share.argmax(axis=1)]
    doubt = np.divide(chance, private + chance, out=np.zeros_like(chance), where=alone & (chance > 0))
    shared: Matrix = total * (share + doubt[:, None] * (usual - share))
    return shared


def _firsts(pages: TouchedPages, some: Indexes) -> Indexes:
    """Return where among these entries each unit begins: a block, or some blocks that are an entry each."""
    # The numbers of units ascend with the entries.
    near = pages.blocks.max() + 1 + pages.blocks[pages.whole] // NEAR_BLOCKS
    unit = np.concatenate([np.repeat(pages.blocks[pages.apart], HUGE_PAGES), near])[some]
    return np.flatnonzero(np.append(True, unit[1:] != unit[:-1]))


def _weighed(pages: TouchedPages, heat: Matrix) -> Matrix:
    """Return the heat with the weight that samples give each block; who uses a page is the bits' to tell."""
    reported = block_heat(pages).heat.sum(axis=1)
    by_bits = np.stack([pages.by_block(heat[:, node] / pages.sizes) for node in range(pages.nodes)], axis=1)
    total = by_bits.sum(axis=1)
    scale = np.divide(reported, total, out=np.zeros_like(reported), where=total > 0)
    # In all as hot as bits say: samples tell what is hotter than what.
    scale *= total.sum() / max(float((scale * total).sum()), 1e-300)
    weighed: Matrix = heat * pages.of_block(scale)[:, None]
    return weighed
