"""move_pages(2) as mm/migrate.c of 6.12 does it, for nodes and failures that this machine cannot offer.

Written from do_pages_move, __add_folio_for_migration and move_pages_and_store_status.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

PAGE = 4096
HUGE = 512 * PAGE


@dataclass
class FakeKernel:
    """``nid_of`` tells the node of each mapped page; addresses rounded to 2 MiB in ``huge`` move whole."""

    nid_of: dict[int, int] = field(default_factory=dict)
    huge: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)
    whole_call_errors: dict[int, int] = field(default_factory=dict)
    dead: bool = False
    duration_ns: Callable[[int], int] = lambda pages: 1000 * pages
    before_call: Callable[[int], None] = lambda call: None
    calls: list[int] = field(default_factory=list)

    def page_nids(self, pid: int, hvas: npt.NDArray[np.uint64], status: npt.NDArray[np.int32]) -> None:
        self._check_alive()
        status[:] = [self.nid_of.get(hva, -errno.ENOENT) for hva in hvas.tolist()]

    def move_pages(
        self,
        pid: int,
        hvas: npt.NDArray[np.uint64],
        nids: npt.NDArray[np.int32],
        status: npt.NDArray[np.int32],
    ) -> int:
        self.calls.append(len(hvas))
        self.before_call(len(self.calls))
        self._check_alive()
        queue: list[int] = []
        blocks: set[int] = set()
        for i, (hva, nid) in enumerate(zip(hvas.tolist(), nids.tolist(), strict=True)):
            if error := self.whole_call_errors.get(nid):
                raise OSError(error, os.strerror(error))
            found = self._queued(hva, nid, blocks)
            if found is None:
                queue.append(i)
                blocks.add(hva // HUGE * HUGE)
                continue
            status[i] = found
            if not self._migrated(queue, hvas, nid, status):
                return self.duration_ns(len(hvas))
            queue, blocks = [], set()
        if queue:
            self._migrated(queue, hvas, int(nids[-1]), status)
        return self.duration_ns(len(hvas))

    def _check_alive(self) -> None:
        if self.dead:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))

    def _queued(self, hva: int, nid: int, blocks: set[int]) -> int | None:
        """Return the status that the page gets at once, None if it is queued; ``blocks`` has queued pages."""
        present = self.nid_of.get(hva)
        if present is None:
            return -errno.ENOENT
        if present == nid:
            return nid
        if hva in self.shared:
            return -errno.EACCES
        block = hva // HUGE * HUGE
        if block in self.huge and block in blocks:
            return -errno.EBUSY
        return None

    def _migrated(
        self,
        queue: list[int],
        hvas: npt.NDArray[np.uint64],
        nid: int,
        status: npt.NDArray[np.int32],
    ) -> bool:
        stuck = False
        for i in queue:
            hva = int(hvas[i])
            if hva in self.held:
                stuck = True
                continue
            block = hva // HUGE * HUGE
            whole = range(block, block + HUGE, PAGE) if block in self.huge else (hva,)
            self.nid_of.update(dict.fromkeys(whole, nid))
        if not stuck:
            status[queue] = nid
        return not stuck
