"""Carry out one guest's part of a plan, chunk by chunk.

A chunk (at most 16 MiB) is looked up, journaled with one fdatasync, and moved in batches of one wanted node.
Journaling whole chunks before the first call keeps the journal cheap and right even where khugepaged made a
huge page of the planned small ones, which the kernel then moves whole.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vmplace.actuation.batch import BUSY, UNTRIED, BatchOutcome, CallWaits, MoveKernel, move_batch, read_nids
from vmplace.actuation.batch_size import BatchSize, BatchSizes
from vmplace.actuation.budget import Budget
from vmplace.actuation.identity import GuestIdentity, read_start_time
from vmplace.actuation.journal import Journal
from vmplace.actuation.page_runs import encode_pages
from vmplace.actuation.pages import WantedPages
from vmplace.actuation.stubborn import StubbornPages
from vmplace.actuation.tally import Tally, errno_name
from vmplace.actuation.veto import PingPongVeto
from vmplace.errors import GuestGoneError

_WHOLE_CALL_REASONS = {
    errno.EACCES: "node {nid} is outside the guest's cpuset.mems; widen it (libvirt: numatune nodeset)",
    errno.ENODEV: "node {nid} does not exist or has no memory",
    errno.ENOMEM: "node {nid} has no free memory for the pages",
}


@dataclass
class GuestMemory:
    """What is remembered about one guest from window to window."""

    veto: PingPongVeto = field(default_factory=PingPongVeto)
    stubborn: StubbornPages = field(default_factory=StubbornPages)
    sizes: BatchSizes = field(default_factory=BatchSizes)

    def start_window(self, now_s: float) -> None:
        """Begin a window, at seconds of the mover's clock."""
        self.veto.start_window()
        self.stubborn.start_window(now_s)


@dataclass(frozen=True)
class Tools:
    """What all guests share during one plan."""

    kernel: MoveKernel
    journal: Journal
    budget: Budget
    clock: Callable[[], int]
    stop: Callable[[], bool]
    proc: Path


class GuestMover:
    """One guest's pages that wait to be moved in this window."""

    def __init__(
        self, identity: GuestIdentity, wanted: WantedPages, memory: GuestMemory, tally: Tally, tools: Tools
    ) -> None:
        self.queue = wanted
        self.tally = tally
        self.failures: list[str] = []
        self.served_bytes = 0
        self._identity = identity
        self._memory = memory
        self._tools = tools
        self._closed: dict[int, str] = {}
        self._waits = CallWaits(identity.pid)

    def move_chunk(self, limit_bytes: int) -> None:
        """Move at most ``limit_bytes`` from the front of the queue.

        Raises GuestGoneError, JournalError; HeldError if the guest holds up a call, or many a little each.
        """
        count = self.queue.prefix_bytes(limit_bytes)
        chunk, self.queue = self.queue.where(slice(count)), self.queue.where(slice(count, None))
        self.served_bytes += int(chunk.sizes_bytes.sum())
        if read_start_time(self._identity.pid, self._tools.proc) != self._identity.start_time:
            raise GuestGoneError(f"process {self._identity.pid} ended")
        chunk, origins = self._located(self._open(chunk))
        if len(chunk):
            runs, to = (encode_pages(chunk.hva, chunk.npages, nids) for nids in (origins, chunk.nid))
            self._tools.journal.record_pages(self._identity, runs, to)
            self._move_located(chunk, origins)

    def end(self, kind: str = "left") -> None:
        """Count all that was not tried under ``kind`` and drop it."""
        self.tally.add(kind, self.tally.rest)
        self.queue = self.queue.where(slice(0))

    def _open(self, chunk: WantedPages) -> WantedPages:
        """Return the pages whose wanted node has not refused the guest in this window."""
        for nid, reason in self._closed.items():
            refused = chunk.nid == nid
            self.tally.add_refused(reason, chunk.npages[refused])
            chunk = chunk.where(~refused)
        return chunk

    def _located(self, chunk: WantedPages) -> tuple[WantedPages, npt.NDArray[np.int16]]:
        """Return the pages that are elsewhere, with their nodes; huge pages that were split come single."""
        first, last = self._nids(chunk.hva), self._nids(chunk.last_hva)
        torn = first != last
        if torn.any():
            chunk = WantedPages.concatenated((chunk.where(~torn), chunk.where(torn).split()))
            first = self._nids(chunk.hva)
        self.tally.add_errors(first, chunk.npages)
        self.tally.add("already", chunk.npages[first == chunk.nid])
        away = (first >= 0) & (first != chunk.nid)
        return chunk.where(away), first[away].astype(np.int16)

    def _nids(self, hva: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        return read_nids(self._tools.kernel, self._identity.pid, hva)

    def _move_located(self, chunk: WantedPages, origins: npt.NDArray[np.int16]) -> None:
        huge = chunk.npages > 1
        for nid in np.unique(chunk.nid).tolist():
            for size, kind in ((self._memory.sizes.huge, huge), (self._memory.sizes.small, ~huge)):
                here = (chunk.nid == nid) & kind
                self._move_to(chunk.where(here), origins[here], size)

    def _move_to(self, pages: WantedPages, origins: npt.NDArray[np.int16], size: BatchSize) -> None:
        """Move ``pages`` to their one node, until done, or stopped, or the budget is used up."""
        while len(pages):
            count = self._affordable(pages.where(slice(size.pages)))
            if not count or self._tools.stop():
                return
            batch = pages.where(slice(count))
            outcome = self._call(batch, origins[:count], size)
            again = outcome.status == UNTRIED
            keep = np.concatenate((again, np.ones(len(pages) - count, bool)))
            pages, origins = pages.where(keep), origins[keep]
            if outcome.error:
                self._close(int(batch.nid[0]), outcome.error)
                pages = self._open(pages)

    def _affordable(self, batch: WantedPages) -> int:
        """Take tokens for as much of ``batch`` as there are; return how many entries that is."""
        now = self._tools.clock()
        count = batch.prefix_bytes(self._tools.budget.available_bytes(now))
        size_bytes = int(batch.sizes_bytes[:count].sum())
        return count if self._tools.budget.take(size_bytes, now) else 0

    def _call(self, batch: WantedPages, origins: npt.NDArray[np.int16], size: BatchSize) -> BatchOutcome:
        nid = int(batch.nid[0])
        outcome = move_batch(self._tools.kernel, self._identity.pid, batch.hva, nid)
        self.tally.called(outcome.duration_ns, outcome.cpu_ns)
        size.took(len(batch), outcome.duration_ns)
        moved = outcome.status == nid
        self._tools.budget.refund(int(batch.sizes_bytes[~moved].sum()))
        self.tally.add_errors(outcome.status, batch.npages)
        self._memory.stubborn.busy(batch.hva[outcome.status == BUSY])
        self._memory.stubborn.moved(batch.hva[moved])
        self._memory.veto.moved(batch.hva[moved], origins[moved], batch.nid[moved])
        self._count_moved(batch.where(moved))
        self._waits.add(outcome)
        return outcome

    def _count_moved(self, moved: WantedPages) -> None:
        """Count, and queue the rest of huge pages that were split since they were sampled."""
        huge = moved.npages > 1
        torn = np.zeros(len(moved), bool)
        torn[huge] = self._nids(moved.last_hva[huge]) != moved.nid[huge]
        self.tally.add("moved", moved.npages[~torn])
        self.tally.add("moved", int(torn.sum()))
        if torn.any():
            rest = moved.where(torn).split()
            heads = np.isin(rest.hva, moved.hva[torn])
            self.queue = WantedPages.concatenated((rest.where(~heads), self.queue))

    def _close(self, nid: int, error: int) -> None:
        self._closed[nid] = errno_name(error)
        self.failures.append(_WHOLE_CALL_REASONS[error].format(nid=nid))
