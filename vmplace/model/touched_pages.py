"""Of which pages of a range is there anything to know, and what was seen of them in the last windows?

Guests are large.  What they touch in a few windows may be little, and of a huge page there is one bit to
see.  So who uses which page is asked of *entries*, and costs what there is of these:

* a 4 KiB page is one, in each 2 MiB block in which anything was seen;
* a huge page is one, and counts as the 512 pages that it has;
* the small pages of a block are one, too, if all that is known of them is the same, and no code was seen
  there.  Each of them can move by itself;
* so are those of a block beyond as many as are asked for one by one (touched_blocks.py): ``coarse``.

First come the entries of single small pages, then those of blocks of small pages, then huge pages, each
ascending.  Where the range has a part of a block, small pages that are not there have entries, too, of which
nothing was seen; a huge page that is in the range in part cannot move, and has none.  Where the source sees
some touches only, what was not seen may have been touched all the same: all blocks have entries.
touched_blocks.py finds them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vmplace.model.page_rates import PER_SECOND
from vmplace.sampling.page_arrays import Bools, Bytes, Indexes, NodeIndexes
from vmplace.sampling.page_frames import block_offset
from vmplace.sampling.sample import NodeHits
from vmplace.topology.guest import HUGE_BYTES, PAGE_BYTES, RamRange

Floats = npt.NDArray[np.float64]
Sizes = npt.NDArray[np.int32]
T = TypeVar("T", bound=np.generic)
HUGE_PAGES = HUGE_BYTES // PAGE_BYTES


@dataclass(frozen=True)
class CountedWindows:
    """Counted accesses of windows, newest first: of so many of the newest they are the first ``ends[n]``."""

    hits: NodeHits
    ends: Indexes

    def __len__(self) -> int:
        """Return how many windows there are."""
        return len(self.ends) - 1

    def newest(self, windows: int) -> NodeHits:
        """Return what was counted in so many of the newest windows, at most."""
        count = int(self.ends[min(windows, len(self))])
        return NodeHits(self.hits.pages[:count], self.hits.rows[:count])


@dataclass(frozen=True)
class TouchedPages:
    """What was seen of a range in the last ``windows``: E entries in B blocks, N nodes.

    ``blocks[B]``: their numbers in the range; the first ``small`` of them have small pages.  ``apart``:
    places in ``blocks`` of those whose pages have an entry each; ``whole``: of those that are an entry.
    ``touches[N + 1, E]``: in how many windows each node touched it; the last row is of nodes that are not
    known.
    ``newest[N, E / 8]``: bits of those that it touched in the newest of them; a ``coarse`` one: in
    any, if anybody did in that.
    ``seen[E]``, ``wrote[E]``: whether anybody touched it, and wrote; bit 0 of the newest window.
    ``all_written``: in one of them that is not known.  ``codes[N, E]``: its rate (page_rates.py).
    ``coarse``: entries of small pages that differ: they have the mean of these, and the node that has most.
    ``sampled``, ``counted`` and ``text`` are those of ``RangePages``, with entries for pages.
    """

    ram: RamRange
    blocks: Indexes
    small: int
    apart: Indexes
    whole: Indexes
    windows: int
    node_index: NodeIndexes
    touches: Bytes
    newest: Bytes
    seen: Bytes
    wrote: Bytes
    all_written: bool
    sampled: bool
    counted: CountedWindows
    text: tuple[Indexes, ...]
    codes: Bytes | None
    coarse: Indexes

    @property
    def entries(self) -> int:
        """Return how many entries there are."""
        return len(self.node_index)

    @property
    def nodes(self) -> int:
        """Return how many nodes there are."""
        return len(self.touches) - 1

    @cached_property
    def users(self) -> list[int]:
        """Return the nodes that touched anything."""
        users: list[int] = np.flatnonzero(self.touches[:-1].any(axis=1)).tolist()
        return users

    @property
    def edge(self) -> int:
        """Return how many entries are small pages by themselves; they come first."""
        return len(self.apart) * HUGE_PAGES

    @property
    def is_huge(self) -> Bools:
        """Return which entries are huge pages."""
        huge = np.zeros(self.entries, np.bool_)
        huge[self.edge :] = self.whole >= self.small
        return huge

    @property
    def sizes(self) -> npt.NDArray[np.int32]:
        """Return how many 4 KiB pages each entry is."""
        sizes = np.ones(self.entries, np.int32)
        sizes[self.edge :] = HUGE_PAGES
        return sizes

    @property
    def exists(self) -> Bools:
        """Return which entries are pages of the range."""
        there, before = np.ones(self.entries, np.bool_), block_offset(self.ram)
        if self.small:
            beyond = (int(self.blocks[self.small - 1]) + 1) * HUGE_PAGES - before - self.ram.npages
            there[: 0 if self.blocks[0] else before] = False
            there[self.edge - max(beyond, 0) : self.edge] = False
        return there

    def by_block(self, values: npt.NDArray[np.generic]) -> Floats:
        """Return the sum over the pages of each block, where a huge page counts as those it has."""
        sums, pages = np.empty(len(self.blocks)), self.singly(values)
        sums[self.apart] = pages.sum(axis=1, dtype=np.float64 if values.dtype.kind == "f" else np.int32)
        sums[self.whole] = np.multiply(values[self.edge :], float(HUGE_PAGES), dtype=np.float64)
        return sums

    def of_block(self, values: npt.NDArray[T]) -> npt.NDArray[T]:
        """Return for each entry what holds for its block."""
        found = np.empty(self.entries, values.dtype)
        self.singly(found)[:] = values[self.apart, None]
        found[self.edge :] = values[self.whole]
        return found

    def singly(self, values: npt.NDArray[T]) -> npt.NDArray[T]:
        """Return what single pages have, by block: [apart, 512]."""
        return values[: self.edge].reshape(-1, HUGE_PAGES)

    def block_of(self, entries: Indexes) -> Indexes:
        """Return the place in ``blocks`` of each entry's block."""
        if not self.edge:
            return self.whole[entries]
        nth = np.where(entries < self.edge, entries // HUGE_PAGES, len(self.apart) + entries - self.edge)
        block: Indexes = np.concatenate([self.apart, self.whole])[nth]
        return block

    def hva_of(self, entries: Indexes) -> Indexes:
        """Return the address of each entry."""
        hva = self._hva_of_blocks(self.block_of(entries))
        if self.edge:
            hva += np.where(entries < self.edge, entries % HUGE_PAGES, 0) * PAGE_BYTES
        return hva

    def _hva_of_blocks(self, places: Indexes) -> Indexes:
        """Return the address of blocks, by their place in ``blocks``."""
        hva: Indexes = self.ram.hva - self.ram.hva % HUGE_BYTES + self.blocks[places] * HUGE_BYTES
        return hva

    def rate_of(self, node: int) -> npt.NDArray[np.float32] | None:
        """Return how often a second this node touches each entry that the windows still show touches of."""
        if self.codes is None:
            return None
        rate: npt.NDArray[np.float32] = PER_SECOND.astype(np.float32)[self.codes[node]]
        rate[self.touches[node] == 0] = 0
        return rate


def runs_of(pages: TouchedPages, chosen: Bools, sizes: Sizes) -> tuple[npt.NDArray[np.uint64], Sizes]:
    """Return the address and the length, in pages, of each run of neighbouring pages; there must be some."""
    begins = chosen.copy()
    if pages.edge:
        begins[1 : pages.edge] &= ~chosen[: pages.edge - 1]
        # Blocks that follow each other here need not be neighbours.
        pages.singly(begins)[:, 0] = pages.singly(chosen)[:, 0]
    first = begins.nonzero()[0]
    length = np.add.reduceat(chosen, first, dtype=np.int32) * sizes[first]
    hva = pages.hva_of(first)
    order = np.argsort(hva)
    hva, length = hva[order], length[order]
    is_apart = np.ones(len(hva), np.bool_)
    np.not_equal(hva[:-1] + length[:-1] * np.int64(PAGE_BYTES), hva[1:], out=is_apart[1:])
    apart = is_apart.nonzero()[0]
    return hva[apart].astype(np.uint64), np.add.reduceat(length, apart)
