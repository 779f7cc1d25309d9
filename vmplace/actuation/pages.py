"""Pages that wait to be moved, as columns."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from vmplace.policy.plan import Move
from vmplace.topology.guest import PAGE_BYTES


@dataclass(frozen=True)
class WantedPages:
    """One entry per page to move: ``hva`` (bytes), ``npages`` (1, or 512 for a huge page), ``nid`` wanted."""

    hva: npt.NDArray[np.uint64]
    npages: npt.NDArray[np.uint16]
    nid: npt.NDArray[np.int16]

    @classmethod
    def of_moves(cls, moves: Iterable[Move]) -> Self:
        """Return the pages of all ``moves`` in their order."""
        parts = [cls(move.hva, move.npages, move.to_nid) for move in moves]
        return cls.concatenated(parts)

    @classmethod
    def concatenated(cls, parts: Iterable["WantedPages"]) -> Self:
        """Return all parts one after the other."""
        listed = list(parts)
        return cls(
            np.concatenate([np.empty(0, np.uint64), *(p.hva for p in listed)]),
            np.concatenate([np.empty(0, np.uint16), *(p.npages for p in listed)]),
            np.concatenate([np.empty(0, np.int16), *(p.nid for p in listed)]),
        )

    def __len__(self) -> int:
        return len(self.hva)

    def where(self, index: slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Self:
        """Return the entries that ``index`` selects."""
        return type(self)(self.hva[index], self.npages[index], self.nid[index])

    @property
    def total_pages(self) -> int:
        """Return the number of 4 KiB pages."""
        return int(self.npages.sum(dtype=np.int64))

    @property
    def sizes_bytes(self) -> npt.NDArray[np.int64]:
        """Return the size of each entry."""
        return self.npages.astype(np.int64) * PAGE_BYTES

    @property
    def last_hva(self) -> npt.NDArray[np.uint64]:
        """Return the address of each entry's last 4 KiB page."""
        return self.hva + (self.sizes_bytes - PAGE_BYTES).astype(np.uint64)

    def split(self) -> Self:
        """Return the same pages with every huge page as single pages."""
        counts = self.npages.astype(np.int64)
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        hva = np.repeat(self.hva, counts) + (offsets * PAGE_BYTES).astype(np.uint64)
        return type(self)(hva, np.ones(len(hva), np.uint16), np.repeat(self.nid, counts))

    def prefix_bytes(self, limit_bytes: int) -> int:
        """Return how many entries from the front fit into ``limit_bytes``."""
        return int(np.searchsorted(np.cumsum(self.sizes_bytes), limit_bytes, side="right"))
