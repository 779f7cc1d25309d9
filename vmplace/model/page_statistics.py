"""What has been seen of each page, by node: touched, written, where it is, when it moved.

For sources that see who touched what (node-rooted harvest, IBS, hint faults).  Flat and 2M-first: a block
of 512 pages costs 32 bytes or less until its pages differ, then at most 4 bytes a page on hosts of up to
eight nodes (7 on larger ones).  A window is taken in at the speed of memory: the C core (native/pages.h)
works on 64 pages at once.

* Heat, per page and node: one bit for each of the last ``heat_bits`` windows, the newest highest, so that it
  halves with each window, as kMAF and DAMON age theirs.  Fewer nodes leave room for more windows.
* Written, per page and node: since the epoch began; and per page, in which of the last three epochs.
* Place: the node; in which of the last three epochs the page moved.

Limit: within one window a page is touched or not; what counts accesses must come from samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace import native
from vmplace.sampling.sample import Bytes

Words = npt.NDArray[np.uint64]
Indexes = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]

BLOCK_PAGES = 512
MAX_NODES = 15
MAX_HEAT_BITS = 7
PLANES = 24
"""Bit planes that, with the place byte, make four bytes a page."""
UNKNOWN = 15
PLACE_UNKNOWN = np.uint64(UNKNOWN) << np.uint64(48)


@dataclass(frozen=True)
class PageReading:
    """What is known of some pages, by page: ``heat`` and ``written`` also by node.

    ``node_index`` -1: not known.  ``moved`` and ``wrote``: 3 in this epoch, 2 and 1 in those before, 0 longer
    ago or never.
    """

    heat: Bytes
    written: npt.NDArray[np.bool_]
    node_index: npt.NDArray[np.int8]
    moved: Bytes
    wrote: Bytes

    def exclusive_node(self) -> npt.NDArray[np.int8]:
        """Return the node that uses the page so much that it belongs there, or -1.

        kMAF, equation 6: heat > 2 x second + 1.
        """
        nodes = self.heat.shape[1]
        order = np.sort(self.heat.astype(np.int16), axis=1)
        second = order[:, -2] if nodes > 1 else np.zeros(len(order), np.int16)
        clear = order[:, -1] > 2 * second + 1
        return np.where(clear, self.heat.argmax(axis=1), -1).astype(np.int8)


@dataclass(frozen=True)
class Sharing:
    """Pages by the node they are on (rows; the last: not known), and by who used them of late."""

    exclusive: Counts
    shared_read: Counts
    shared_written: Counts
    cold: Counts


def heat_bits_of(nodes: int) -> int:
    """Return for how many windows heat is kept: as many as fit in four bytes a page, two to seven."""
    return max(2, min(MAX_HEAT_BITS, PLANES // nodes - 1))


class PageStatistics:
    """The statistics of one RAM range, changed in place; page 0 lies on a 2 MiB boundary of the guest."""

    def __init__(self, npages: int, nodes: int) -> None:
        """Begin with nothing known of ``npages`` 4 KiB pages; raises ValueError for more than 15 nodes."""
        if not 1 <= nodes <= MAX_NODES or npages < 1:
            raise ValueError(
                f"page statistics are for 1 to {MAX_NODES} nodes, not {nodes}, and for some pages"
            )
        self.npages, self.nodes, self.heat_bits = npages, nodes, heat_bits_of(nodes)
        self.blocks = -(-npages // BLOCK_PAGES)
        slot_words = (self.heat_bits + 1) * nodes * 8 + BLOCK_PAGES // 8
        self._state = np.array([nodes, self.heat_bits, 0, 0, 0, 0], np.uint64)
        self.touched: npt.NDArray[np.uint16] = np.zeros((self.blocks, nodes), np.uint16)
        self._parts = (
            self._state,
            np.full(self.blocks, PLACE_UNKNOWN, np.uint64),
            np.full(self.blocks, -1, np.int32),
            self.touched,
            # Reserved, not used: the kernel gives a page of it when a slot is first written.
            np.zeros(self.blocks * slot_words, np.uint64),
            np.zeros(self.blocks, np.int32),
        )
        self._slot_bytes = slot_words * 8

    @property
    def used_bytes(self) -> int:
        """Return the memory in use: the blocks, and the slots that were ever taken."""
        small = sum(array.nbytes for array in (*self._parts[:4], self._parts[5]))
        return small + int(self._state[3]) * self._slot_bytes

    @property
    def split_blocks(self) -> int:
        """Return how many blocks have pages that differ."""
        return int(self._state[3] - self._state[4])

    def begin_window(self) -> None:
        """Age all heat by one window; ``touched`` (pages by [block, node]) counts from zero."""
        native.pages_begin(self._parts)

    def begin_epoch(self) -> None:
        """Age what was written and moved; to be called now and then, e.g. every minute."""
        native.pages_epoch(self._parts)

    def absorb_window(self, accessed: Words, written: Words, *, begin: bool = True) -> None:
        """Begin a window, unless told otherwise, and take in the harvest of all nodes in one sweep.

        Both by [node, word]: a bit per page, 64 in a word, lowest first, for all blocks.
        """
        native.pages_absorb(self._parts, accessed, written, begin)

    def absorb_records(self, records: Words, base_gfn: int, nids: Sequence[int]) -> int:
        """Take in records of the kernel's harvest, flat, four items each; return how many were not for us.

        ``base_gfn`` is page 0's; ``nids[i]`` the nid of node index i.
        """
        node_of_nid = np.full(max(nids) + 1, -1, np.int32)
        node_of_nid[list(nids)] = np.arange(len(nids))
        return native.pages_records(self._parts, records, base_gfn, node_of_nid)

    def absorb_samples(self, pages: Words, nodes: Indexes, written: Bytes) -> int:
        """Take in single accesses (IBS, hint faults); return how many had no such page or node.

        A node that the source does not know is -1, and counts for nothing.
        """
        return native.pages_samples(self._parts, pages, nodes, written)

    def note_places(self, node_index: npt.NDArray[np.int8]) -> None:
        """Note where all pages are; -1 is not known."""
        padded = np.full(self.blocks * BLOCK_PAGES, UNKNOWN, np.uint8)
        padded[: self.npages] = np.where(node_index < 0, UNKNOWN, node_index)
        native.pages_place(self._parts, padded)

    def note_moved(self, pages: Words, node: int) -> int:
        """Note that pages moved to node index ``node``; return how many are none of ours."""
        return native.pages_moved(self._parts, pages, node)

    def note_moved_blocks(self, blocks: Words, node: int) -> None:
        """Note that whole blocks moved to node index ``node``."""
        native.pages_moved_blocks(self._parts, blocks, node)

    def read(self, pages: Words) -> PageReading:
        """Return what is known of ``pages``; raises ValueError for one that does not exist."""
        heat = np.zeros((len(pages), self.nodes), np.uint8)
        written, place = np.zeros_like(heat), np.zeros(len(pages), np.uint8)
        native.pages_read(self._parts, pages, heat, written, place)
        node = (place & 15).astype(np.int8)
        node[node == UNKNOWN] = -1
        moved, wrote = (place >> 4 & 3).astype(np.uint8), (place >> 6).astype(np.uint8)
        return PageReading(heat, written.astype(np.bool_), node, moved, wrote)

    def sharing(self) -> Sharing:
        """Return who uses the pages, counted over all of them; those beyond ``npages`` count as cold."""
        counts = np.zeros((self.nodes + 1, self.nodes + 3), np.uint64)
        native.pages_sharing(self._parts, counts)
        table = counts.astype(np.int64)
        # Nothing is ever seen of the pages that only fill up the last block.
        table[-1, -1] -= self.blocks * BLOCK_PAGES - self.npages
        n = self.nodes
        return Sharing(table[:, :n], table[:, n], table[:, n + 1], table[:, n + 2])
