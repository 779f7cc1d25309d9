"""A KVM for tests of copies that keeps them node by node, and refuses frames as replica.c does."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.unit.actuation.child_guest import guest_of
from tests.unit.actuation.copying_kvm import HVA, OneSlot
from vmplace.actuation.budget import Budget
from vmplace.actuation.replica_calls import STATUS
from vmplace.actuation.replicator import Replicator
from vmplace.actuation.result import ReplicaOutcome
from vmplace.policy.plan import Collapse, Replication
from vmplace.topology.guest import PAGE_BYTES

SECOND = 10**9


@dataclass
class NodeKvm:
    """Pages that lie on node ``home``, and the nodes that have copies of each.

    ``refusals``: why frames get no further copies; ``mems``: nodes that may have any; ``is_huge``: all pages
    are huge.  ``error`` is raised where it is to count, ``drop_error`` once a page is dropped.
    """

    home: int = 0
    mems: int = 0b1111
    is_huge: bool = False
    refusals: dict[int, str] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)
    made: int = 0
    lost: int = 0
    released: int = 0
    asked: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    error: OSError | None = None
    drop_error: OSError | None = None

    def __call__(self, fd: int, nodes: int, gfns: Any, npages: Any, done: Any, status: Any) -> None:
        (self.asked if nodes else self.dropped).append(int(npages.sum()))
        for at, (gfn, count) in enumerate(zip(gfns.tolist(), npages.tolist(), strict=True)):
            frames = range(gfn, gfn + count)
            why = [self._copy(gfn, nodes, count) if nodes else self._drop(gfn) for gfn in frames]
            done[at] = why.count("ok")
            status[at] = STATUS.index(next((word for word in why if word != "ok"), "ok"))

    def _copy(self, gfn: int, nodes: int, count: int) -> str:
        has = self.copies.get(gfn, 0)
        if nodes & ~self.mems:
            return "node refused"
        if self.is_huge and count < 512:
            return "huge"
        lacks = nodes & ~(has | 1 << self.home)
        if has and not lacks:
            return "ok"
        if gfn in self.refusals:
            return self.refusals[gfn]
        self.made += not has
        self.copies[gfn] = has | lacks
        return "ok"

    def _drop(self, gfn: int) -> str:
        size = 512 if self.is_huge else 1
        for one in range(gfn - gfn % size, gfn - gfn % size + size):
            self.released += self.copies.pop(one, None) is not None
        if self.drop_error:
            raise self.drop_error
        return "ok"

    def write(self, *gfns: int) -> None:
        """Have the guest write pages: their copies are lost."""
        for gfn in gfns:
            self.lost += self.copies.pop(gfn, None) is not None

    def on(self, nid: int) -> int:
        """Return how many pages have a copy on a node."""
        return sum(nodes >> nid & 1 for nodes in self.copies.values())

    def statistics(self) -> dict[str, int]:
        """Return what KVM counts."""
        if self.error:
            raise self.error
        present = sum(nodes.bit_count() for nodes in self.copies.values())
        return dict(zip(OneSlot().statistics(), (self.made, self.lost, self.released, present), strict=True))


class CopiedGuest:
    """A guest of so many pages with a KVM of its own, and the replicator that serves it."""

    def __init__(self, npages: int, kvm: NodeKvm | None = None, bytes_per_s: float | None = None) -> None:
        self.npages, self.kvm, self.now_ns = npages, kvm or NodeKvm(), 0
        self.guest, self.budget = guest_of(os.getpid(), 1 << 32, npages), Budget(bytes_per_s)
        self.slot = OneSlot(npages=npages, kvm=self.kvm)
        opened: Any = lambda *_: self.slot  # noqa: E731
        self.replicator = Replicator(self.budget, lambda: self.now_ns, opened=opened, ask=self.kvm)

    def window(self, *nids: int, **more: Any) -> ReplicaOutcome:
        """Have the pages get copies on these nodes in a window of a second; nothing may fail."""
        size = np.array([self.npages], np.int32)
        wanted = Replication("db1", HVA, size, nids, "test", **more)
        (outcome,), failures = self.replicator.apply([wanted], {"db1": self.guest})
        assert not failures
        self.now_ns += SECOND
        return outcome

    def drop(
        self,
        first: int = 0,
        npages: int | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        *,
        is_all: bool = False,
    ) -> int:
        """Drop the copies of a run of pages, of all at first."""
        hva, size = HVA + np.uint64(first * PAGE_BYTES), np.array([npages or self.npages], np.int32)
        unwanted = Collapse("db1", hva, size, "test", is_all)
        return self.replicator.drop(unwanted, self.guest, is_stopping)
