"""KVM's placement fd for tests of copies: what it is asked is noted, and what it copies is counted."""

import errno
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from vmplace.actuation.replica_calls import STATUS
from vmplace.policy.plan import Replication

HVA, FOUR = np.array([1 << 32], np.uint64), np.array([4], np.int32)
COPIES = Replication("db1", HVA, FOUR, (0, 1), "test")


@dataclass
class OneSlot:
    """A placement fd of a guest with one slot; no KVM of ours runs here."""

    npages: int = 8
    fd: int = 3
    is_closed: bool = False
    kvm: Any = None
    counts: int = 1 << 20
    """So often it can be asked for statistics."""

    def call(self, step: Any) -> Any:
        return step(self.fd)

    def info(self) -> Any:
        return SimpleNamespace(
            root_nodes=0b111, slots=[SimpleNamespace(as_id=0, base_gfn=0, npages=self.npages, hva=1 << 32)]
        )

    def statistics(self) -> dict[str, int]:
        self.counts -= 1
        if self.counts < 0:
            raise OSError(errno.ENOMEM, "no memory")
        if self.kvm is not None:
            counted: dict[str, int] = self.kvm.statistics()
            return counted
        return {"replicated_pages": 0, "collapsed_pages": 0, "released_pages": 0, "replica_copies": 0}

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Kvm:
    """KVM's ioctl: drops ``pages_a_call`` of each range, as a signal has it do, or raises ``error``."""

    dropped: list[tuple[int, list[int]]] = field(default_factory=list)
    pages_a_call: int = 1 << 20
    error: OSError | None = None
    refusal: str | None = None

    def __call__(self, fd: int, nodes: int, gfns: Any, npages: Any, done: Any, status: Any) -> None:
        if self.error and not nodes:
            raise self.error
        self.dropped.append((nodes, gfns.tolist()))
        if self.refusal:
            status[:] = STATUS.index(self.refusal)
            return
        done[:] = np.minimum(npages, npages if nodes else self.pages_a_call)


@dataclass
class CountingKvm:
    """Makes copies of small pages for two nodes, and counts as KVM does.

    Call number ``fails_at`` that is to make some fails after its first frame; ``refused`` frames get none.
    """

    fails_at: int = -1
    refused: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    made: int = 0
    lost: int = 0
    asked: list[int] = field(default_factory=list)
    refusal: str = "not present"

    def __call__(self, fd: int, nodes: int, gfns: Any, npages: Any, done: Any, status: Any) -> None:
        status[:], self.fails_at = 0, self.fails_at - bool(nodes)
        for at, (gfn, count) in enumerate(zip(gfns.tolist(), npages.tolist(), strict=True)):
            frames = set(range(gfn, gfn + count))
            done[at] = count
            if not nodes:
                self.copied -= frames
                continue
            self.asked += sorted(frames)
            may = frames - self.refused if self.fails_at else {gfn}
            self.made += len(may - self.copied)
            self.copied |= may
            if not self.fails_at:
                raise OSError(errno.EFAULT, "made up")
            done[at], status[at] = len(may), 0 if may == frames else STATUS.index(self.refusal)

    def lose(self, *frames: int) -> None:
        """Drop copies of pages that were written."""
        self.copied -= set(frames)
        self.lost += len(frames)

    def statistics(self) -> dict[str, int]:
        """Return what KVM counts."""
        counts = (self.made, self.lost, 0, len(self.copied))
        return dict(zip(OneSlot().statistics(), counts, strict=True))
