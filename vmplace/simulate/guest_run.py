"""How far is a simulated guest, where are its pages, and what does its present window ask?

A guest replays one trace.  Its threads are distributed, in order, to its vCPUs, and these to its nodes; a
node with more vCPUs than CPUs shares its time.  A window's threads run side by side as far as their
accesses are even (parallelism = all accesses / those of the busiest vCPU) and nobody waits at barriers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vmplace.errors import WrongUsageError
from vmplace.model.cpu_shares import cpu_shares
from vmplace.model.described_memory import MLP
from vmplace.model.memory_system import MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.model.vcpu_sharing import vcpu_sharing
from vmplace.policy.host_view import (
    ABSENT,
    REPLICATED,
    Bools,
    Counters,
    GuestEvidence,
    Indexes,
    NodeIndexes,
    row_sums,
    traffic,
)
from vmplace.policy.vcpu_moves import vcpu_shift
from vmplace.simulate.host_file import SimulatedHost
from vmplace.simulate.learnt import HALF_LIFE_NS, Learnt
from vmplace.simulate.look import WindowTruth
from vmplace.simulate.trace import Trace

ACCESS_NS = 0.5
"""Time per access before any cache: an instruction mix of about three per access at 2.6 GHz and IPC 2."""
LLC_HIT_NS = 12.0
"""A miss of the private cache that the last-level cache serves."""


@dataclass(frozen=True)
class GuestSpec:
    """What is reported of a guest; nodes are indexes.

    ``first_touch``: the node of pages that are touched for the first time, one for all or one per page;
    None = the first toucher's.  ``pinned``: vCPUs run on their nodes only, and nobody may tie them to others.
    """

    name: str
    trace: Trace
    nodes: tuple[int, ...]
    vcpus: int
    first_touch: int | NodeIndexes | None = None
    mlp: float = MLP
    slowdown_bound: float | None = None
    pinned: bool = False


@dataclass
class GuestCounts:
    """What was done to a guest, in pages of 4 KiB; ``replicated`` counts every copy."""

    moved: int = 0
    replicated: int = 0
    collapsed: int = 0
    refused: int = 0


class GuestRun:
    """The state of one guest on its way through its trace."""

    def __init__(
        self,
        spec: GuestSpec,
        host: SimulatedHost,
        windows: int,
        half_life_ns: float = HALF_LIFE_NS,
        with_hits: bool = False,
    ) -> None:
        self.spec, self.windows, self.window = spec, min(windows, spec.trace.windows), 0
        self.nodes, self.with_hits, self.unit_pages = len(host.cpus), with_hits, spec.trace.unit_pages
        self.vcpu_node = np.array(spec.nodes)[np.arange(spec.vcpus) * len(spec.nodes) // spec.vcpus]
        self.has_cpus: Bools = host.cpus > 0
        self.may_run: list[Sequence[int]] | None = None
        """The nodes on which each vCPU may run, None: on all."""
        if spec.pinned:
            self.tie_to(self.vcpu_node)
        self.cpu_share, self.side_by_side = 1.0, 1.0
        self.node: NodeIndexes = np.full(spec.trace.npages, ABSENT, np.int8)
        self.changes = 0
        self.counts = GuestCounts()
        self.learnt = Learnt(spec.trace.npages, self.nodes, spec.trace.near, half_life_ns)
        self._traffic: Matrix | None = None
        self._sharing: Matrix | None = None
        self._open()

    def _open(self) -> None:
        """Take up the present window: its accesses by page and node, its speed."""
        trace, records = self.spec.trace, self.spec.trace.records(self.window)
        where = trace.page[records].astype(np.int64) * self.nodes + self.thread_node[trace.thread[records]]
        size = trace.npages * self.nodes

        def by_page(counts: npt.NDArray[Any]) -> Matrix:
            flat: Matrix = np.bincount(where, weights=counts, minlength=size).astype(np.float64)
            return flat.reshape(-1, self.nodes)

        loads, stores = by_page(trace.loads[records]), by_page(trace.stores[records])
        sampled = np.maximum(by_page(self._raw_of(records)), loads + stores) if self.with_hits else None
        self.truth = WindowTruth(by_page(trace.dram[records]), loads + stores, stores, sampled)
        self.accesses = max(float(self.truth.dram.sum()), 1.0)
        self.read_ratio = 1 - float(np.minimum(self.truth.stores, self.truth.dram).sum()) / self.accesses
        self._written: Bools = row_sums(stores) > 0
        self._traffic = self._sharing = None
        vcpu_raw = np.bincount(self.thread_vcpu, weights=trace.raw[self.window], minlength=self.spec.vcpus)
        self.raw_accesses = float(vcpu_raw.sum())
        busiest = max(float(vcpu_raw.max()), 1.0)
        self.side_by_side = max(float(vcpu_raw.sum()) / busiest, 1.0)
        hits = max(float(self.truth.touches.sum()) - self.accesses, 0.0)
        work_ns = float(vcpu_raw.sum()) * ACCESS_NS + hits * LLC_HIT_NS / self.spec.mlp
        self.think_ns = work_ns / self.accesses

    def _raw_of(self, records: slice) -> npt.NDArray[np.float64]:
        """Return each record's share of its thread's accesses in the window, by the samples of its page."""
        trace = self.spec.trace
        weight, thread = trace.sampled[records], trace.thread[records]
        total = np.bincount(thread, weights=weight, minlength=trace.threads)
        raw = np.divide(trace.raw[self.window], total, out=np.zeros(trace.threads), where=total > 0)
        shares: npt.NDArray[np.float64] = weight * raw[thread]
        return shares

    @property
    def worker(self) -> Bools:
        """Return on which nodes vCPUs run."""
        return np.bincount(self.vcpu_node, minlength=self.nodes) > 0

    @property
    def traffic(self) -> Matrix:
        """Return the accesses of the present window by (CPU node, memory node)."""
        if self._traffic is None:
            self._traffic = traffic(self.truth.dram, self.node)
        return self._traffic

    def put(self, pages: Indexes, node: NodeIndexes | int) -> None:
        """Let ``pages`` be on ``node`` from now on."""
        self.node[pages] = node
        self._traffic = None
        self.changes += 1

    def run_on(self, vcpu_node: Indexes) -> None:
        """Let the vCPUs run on these nodes from now on."""
        self.learnt.ran_on(vcpu_shift(self.vcpu_node, vcpu_node, self.nodes))
        self.vcpu_node = vcpu_node.copy()
        self._open()

    def tie_to(self, vcpu_node: Indexes) -> None:
        """Let each vCPU run on one node alone, wherever it is now."""
        self.may_run = [(node,) for node in vcpu_node.tolist()]

    @property
    def parallelism(self) -> float:
        """Return how many of the guest's vCPUs run at once in the present window."""
        return self.side_by_side * self.cpu_share

    @property
    def thread_vcpu(self) -> npt.NDArray[np.intp]:
        """Return the vCPU of each thread; one that is no worker shares the nearest worker's."""
        trace = self.spec.trace
        place = (np.arange(trace.threads) - trace.first_worker) * self.spec.vcpus // trace.workers
        return np.clip(place, 0, self.spec.vcpus - 1)

    @property
    def thread_node(self) -> npt.NDArray[np.intp]:
        """Return the index of the node on which each thread runs."""
        nodes: npt.NDArray[np.intp] = self.vcpu_node[self.thread_vcpu]
        return nodes

    @property
    def fresh(self) -> npt.NDArray[np.intp]:
        """Return the pages first touched in the present window, in the order of the touches."""
        pages = np.flatnonzero(self.spec.trace.first_touch_window == self.window)
        return pages[np.argsort(self.spec.trace.first_touch_rank[pages], kind="stable")]

    def first_touch_nodes(self, pages: npt.NDArray[np.intp]) -> NodeIndexes:
        """Return the node of the thread that touches each page first, or the one the guest was started on."""
        if self.spec.first_touch is not None:
            return np.broadcast_to(np.int8(self.spec.first_touch), len(self.node))[pages]
        return self.thread_node[self.spec.trace.first_touch_thread[pages]].astype(np.int8)

    def collapse(self) -> int:
        """Drop the copies of pages that the present window writes to; return how many pages.

        The page stays where it is written most; that the window's reads before the write were still
        served by the copies is not counted.
        """
        written = np.flatnonzero((self.node == REPLICATED) & self._written)
        self.put(written, self.truth.stores[written].argmax(axis=1).astype(np.int8))
        self.counts.collapsed += len(written) * self.unit_pages
        self.learnt.collapsed(written)
        return len(written)

    def advance(self) -> bool:
        """Go to the next window; False if that was the last."""
        self.put(np.flatnonzero(self.spec.trace.free_window == self.window), ABSENT)
        self.window += 1
        if self.window < self.windows:
            self._open()
        return self.window < self.windows

    def sharing(self) -> Matrix:
        """Return, of the present window, how much each two vCPUs touch the same pages."""
        if self._sharing is None:
            self._sharing = self._shared_accesses()
        return self._sharing

    def _shared_accesses(self) -> Matrix:
        trace, records = self.spec.trace, self.spec.trace.records(self.window)
        count = self.spec.vcpus
        where = trace.page[records].astype(np.int64) * count + self.thread_vcpu[trace.thread[records]]
        counts = trace.loads[records].astype(np.float64) + trace.stores[records]
        flat: Matrix = np.bincount(where, weights=counts, minlength=trace.npages * count).astype(np.float64)
        return vcpu_sharing(flat.reshape(-1, count))

    def copy_nodes(self, system: MemorySystem) -> Bools:
        """Return on which nodes a replicated page of the guest lies: those of its vCPUs that have memory."""
        near = self.worker & (system.controller > 0)
        return near if near.any() else system.controller > 0

    def speed_evidence(self) -> GuestEvidence:
        """Return what ``demand`` needs, and nothing of the pages."""
        nothing = np.zeros((0, self.nodes))
        return self._evidence(nothing, np.zeros(0, np.bool_), None, None, None)

    def exact(self) -> GuestEvidence:
        """Return what the present window does, as evidence without a doubt."""
        return self._evidence(self.truth.dram, self._written, None, None, None)

    def evidence(self, counters: Counters | None = None, estimated: bool = True) -> GuestEvidence:
        """Return what the source showed of the guest so far, or not ``estimated``: nothing beyond that."""
        learnt = self.learnt
        heat, suspect = learnt.shown, np.zeros(len(self.node), np.bool_)
        if estimated:
            heat, suspect = learnt.heat(self.node), learnt.suspect(self.node)
        return self._evidence(heat, suspect, learnt.read_ratio, learnt.recent, counters)

    def _evidence(
        self,
        heat: Matrix,
        written: Bools,
        read_ratio: float | None,
        recent: Matrix | None,
        counters: Counters | None,
    ) -> GuestEvidence:
        return GuestEvidence(
            name=self.spec.name,
            heat=heat,
            written=written,
            node=self.node,
            worker=self.worker,
            windows=np.ones(len(self.node), np.int64),
            read_ratio=read_ratio,
            parallelism=self.parallelism,
            think_ns=self.think_ns,
            mlp=self.spec.mlp,
            recent=recent,
            samples=self.learnt.samples,
            samples_recent=self.learnt.samples_recent,
            sharing=self.learnt.sharing,
            vcpu_node=self.vcpu_node,
            may_tie=None if self.spec.pinned else self.has_cpus,
            counters=counters,
            slowdown_bound=self.spec.slowdown_bound,
            sizes=None if self.unit_pages == 1 else np.full(len(self.node), float(self.unit_pages)),
        )


def share_cpus(guests: list[GuestRun], host: SimulatedHost) -> None:
    """Let guests whose vCPUs outnumber a node's CPUs share these; raises for nodes without CPUs."""
    used = (
        np.unique(np.concatenate([guest.vcpu_node for guest in guests])) if guests else np.zeros(0, np.intp)
    )
    bare = [host.system.nids[node] for node in used if host.cpus[node] == 0]
    if bare:
        raise WrongUsageError(f"nodes {bare} have no CPUs to run vCPUs", hint="name others with nodes=")
    shares = cpu_shares([guest.vcpu_node for guest in guests], host.cpus)
    for guest, share in zip(guests, shares.tolist(), strict=True):
        guest.cpu_share = share
