"""How far is a simulated guest, where are its pages, and what does its present window ask?

A guest replays one trace.  Its threads are dealt out, in order, to its vCPUs, and these to its nodes; a
node with more vCPUs than CPUs shares its time.  A window's threads run side by side as far as their
accesses are even (parallelism = all accesses / those of the busiest vCPU) and nobody waits at barriers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vmplace.errors import VmplaceError
from vmplace.model.described_memory import MLP
from vmplace.model.metrics import Matrix
from vmplace.policy.host_view import ABSENT, REPLICATED, Bools, GuestEvidence, NodeIndexes
from vmplace.simulate.host_file import SimulatedHost
from vmplace.simulate.source_views import Source, WindowTruth
from vmplace.simulate.trace import Ints, Trace

ACCESS_NS = 0.5
"""Time per access before any cache: an instruction mix of about three per access at 2.6 GHz and IPC 2."""
LLC_HIT_NS = 12.0
"""A miss of the private cache that the last-level cache serves."""
AGEING = 0.5
"""Share of the heat that is kept per window; a page below one access is forgotten."""
QUIET_WINDOWS = 2
"""A page counts as written until this many windows passed without a write to it.

One whose copies collapsed counts so for good (Carrefour gives up after five collapses).
"""


@dataclass(frozen=True)
class GuestSpec:
    """What the command line says of a guest; nodes are indexes, ``first_touch`` None = by first toucher."""

    name: str
    trace: Trace
    nodes: tuple[int, ...]
    vcpus: int
    first_touch: int | None = None
    mlp: float = MLP


@dataclass
class GuestCounts:
    """What was done to a guest, in pages."""

    moved: int = 0
    replicated: int = 0
    collapsed: int = 0
    refused: int = 0


class GuestRun:
    """The state of one guest on its way through its trace."""

    def __init__(self, spec: GuestSpec, host: SimulatedHost, windows: int) -> None:
        self.spec, self.windows, self.window = spec, min(windows, spec.trace.windows), 0
        self.nodes = len(host.cpus)
        self.vcpu_node = np.array(spec.nodes)[np.arange(spec.vcpus) * len(spec.nodes) // spec.vcpus]
        self.worker: Bools = np.isin(np.arange(self.nodes), spec.nodes)
        self.cpu_share = 1.0
        self.node: NodeIndexes = np.full(spec.trace.npages, ABSENT, np.int8)
        self.counts = GuestCounts()
        self.watched = 0
        self.heat = np.zeros((spec.trace.npages, self.nodes))
        self.seen = np.zeros(spec.trace.npages, np.int64)
        self.read_ratio: float | None = None
        self._vetoed: Bools = np.zeros(spec.trace.npages, np.bool_)
        self._quiet = np.full(spec.trace.npages, QUIET_WINDOWS, np.int64)
        self._open()

    def _open(self) -> None:
        """Take up the present window: its accesses by page and node, its pace."""
        trace, records = self.spec.trace, self.spec.trace.records(self.window)
        where = trace.page[records].astype(np.int64) * self.nodes + self.thread_node[trace.thread[records]]
        size = trace.npages * self.nodes

        def by_page(counts: Ints) -> Matrix:
            flat: Matrix = np.bincount(where, weights=counts, minlength=size).astype(np.float64)
            return flat.reshape(-1, self.nodes)

        loads, stores = by_page(trace.loads[records]), by_page(trace.stores[records])
        self.truth = WindowTruth(by_page(trace.dram[records]), loads + stores, stores)
        self.accesses = max(float(self.truth.dram.sum()), 1.0)
        vcpu_raw = np.bincount(self.thread_vcpu, weights=trace.raw[self.window], minlength=self.spec.vcpus)
        busiest = max(float(vcpu_raw.max()), 1.0)
        self._side_by_side = max(float(vcpu_raw.sum()) / busiest, 1.0)
        hits = max(float(self.truth.touches.sum()) - self.accesses, 0.0)
        work_ns = float(vcpu_raw.sum()) * ACCESS_NS + hits * LLC_HIT_NS / self.spec.mlp
        self.think_ns = work_ns / self.accesses

    @property
    def parallelism(self) -> float:
        """Return how many of the guest's vCPUs run at once in the present window."""
        return self._side_by_side * self.cpu_share

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
            return np.full(len(pages), self.spec.first_touch, np.int8)
        return self.thread_node[self.spec.trace.first_touch_thread[pages]].astype(np.int8)

    def collapse(self) -> int:
        """Drop the copies of pages that the present window writes to; return how many pages.

        The page stays where it is written most; that the window's reads before the write were still
        served by the copies is not counted.
        """
        written = np.flatnonzero((self.node == REPLICATED) & (self.truth.stores.max(axis=1) > 0))
        self.node[written] = self.truth.stores[written].argmax(axis=1)
        self.counts.collapsed += len(written)
        self._vetoed[written] = True
        return len(written)

    def watch(self, source: Source, chance: np.random.Generator) -> None:
        """Add to the evidence what ``source`` shows of the present window."""
        seen = source(self.truth, chance)
        self.heat = AGEING * self.heat + (1 - AGEING if self.watched else 1.0) * seen.heat
        self.heat[self.heat < AGEING] = 0.0
        self.seen += seen.heat.max(axis=1) > 0
        self.read_ratio = seen.read_ratio
        self._quiet = np.where(seen.written, 0, self._quiet + 1)
        self.watched += 1

    def advance(self) -> bool:
        """Go to the next window; False if that was the last."""
        self.node[self.spec.trace.free_window == self.window] = ABSENT
        self.window += 1
        if self.window < self.windows:
            self._open()
        return self.window < self.windows

    def evidence(self, *, exact: bool = False) -> GuestEvidence:
        """Return what is known of the guest, or (``exact``) what its present window will do."""
        suspect = (self._quiet < QUIET_WINDOWS) | self._vetoed
        return GuestEvidence(
            name=self.spec.name,
            heat=self.truth.dram if exact else self.heat,
            written=self.truth.stores.max(axis=1) > 0 if exact else suspect,
            node=self.node,
            worker=self.worker,
            windows=self.seen,
            read_ratio=None if exact else self.read_ratio,
            parallelism=self.parallelism,
            think_ns=self.think_ns,
            mlp=self.spec.mlp,
        )


def share_cpus(guests: list[GuestRun], host: SimulatedHost) -> None:
    """Let guests whose vCPUs outnumber a node's CPUs share these evenly; raises for nodes without CPUs."""
    vcpus = np.sum([np.bincount(guest.vcpu_node, minlength=len(host.cpus)) for guest in guests], axis=0)
    if (vcpus[host.cpus == 0] > 0).any():
        bare = [host.system.nids[i] for i in np.flatnonzero((host.cpus == 0) & (vcpus > 0))]
        raise VmplaceError(f"nodes {bare} have no CPUs to run vCPUs", hint="name others with nodes=")
    share = np.minimum(1.0, host.cpus / np.maximum(vcpus, 1))
    for guest in guests:
        guest.cpu_share = float(share[guest.vcpu_node].mean())
