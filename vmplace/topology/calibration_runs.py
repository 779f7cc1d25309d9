"""How fast do the CPUs of each node really read the memory of each node, alone and all at once?

1. Each node pair alone: all CPUs of the one read memory of the other.
2. Each node pair once more: one CPU reads a line at a time.  That is the latency of an idle host.
3. Each node's own memory: one CPU reads a line at a time while more and more of the others stream from it
   (loaded_latency.py).
4. Each sensible set of worker nodes at once, every CPU reading from all nodes in turn, as an application
   does whose pages are interleaved (BWAP, section III-A3): the figures that canonical weights come from.
   Sensible: each node with its nearest ones, of every size; scattered sets are nobody's choice.

Limits: reading only; guests and others that run meanwhile take their part, so calibrate an idle host.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from vmplace.errors import VmplaceError
from vmplace.topology.bandwidth import bandwidth_weights
from vmplace.topology.calibration import Calibration, LoadedLatency, MachineIdentity, NodePath, WorkerSet
from vmplace.topology.host import HostTopology, Node
from vmplace.topology.streams import Reader, Readings, readings

MOST_LOADS = 6
"""So many steps of load on each node: enough for some of them to be neither light nor full."""

Report = Callable[[str, int, int], None]
"""Takes what is measured next, how many measurements are done, and how many there will be."""


def measured(
    host: HostTopology,
    machine: MachineIdentity,
    *,
    duration_ms: int = 300,
    cpus: frozenset[int] | None = None,
    report: Report = lambda _what, _done, _all: None,
) -> Calibration:
    """Measure the host; it takes about ``duration_ms`` for each measurement (see above how many these are).

    ``cpus`` are those that may be used (all, if None).  Raises VmplaceError where this process may not use a
    node's CPUs or memory.
    """
    workers = {node.nid: _usable_cpus(node, cpus) for node in host.nodes if node.cpus}
    pairs = [(cpu_nid, mem_nid) for cpu_nid in workers for mem_nid in host.memory_nids]
    loads = [(nid, streams) for nid in workers for streams in _loads(host.node(nid), len(workers[nid]))]
    sets = worker_sets(host)
    if not pairs:
        raise VmplaceError(
            "this host has no node with CPUs, or none with memory",
            hint="`lscpu --extended` and `lsmem` show what is online; chcpu and chmem change it",
        )
    runs = _Runs(host, workers, duration_ms, report, 2 * len(pairs) + len(loads) + len(sets))
    started = time.time()
    paths = tuple(runs.alone(*pair) for pair in pairs)
    paths = tuple(runs.idle(path) for path in paths)
    loaded = tuple(runs.loaded(*load) for load in loads)
    together = tuple(runs.together(nids) for nids in sets)
    return Calibration(machine=machine, measured_at=started, paths=paths, worker_sets=together, loaded=loaded)


def worker_sets(host: HostTopology) -> tuple[tuple[int, ...], ...]:
    """Return the sets of nodes that guests sensibly run on: each node with its nearest, of every size."""
    nids = [node.nid for node in host.nodes if node.cpus]
    sets = set()
    for nid in nids:
        near = sorted(nids, key=lambda other, nid=nid: (host.distances[nid, other], other != nid, other))  # type: ignore[misc]
        sets |= {tuple(sorted(near[:size])) for size in range(1, len(nids) + 1)}
    return tuple(sorted(sets, key=lambda one: (len(one), one)))


def _loads(node: Node, cpus: int) -> list[int]:
    """Return how many CPUs stream while another one chases: each number up to all, or MOST_LOADS of them."""
    most = cpus - 1 if node.memory_bytes else 0
    steps = min(most, MOST_LOADS)
    return sorted({round(most * (step + 1) / steps) for step in range(steps)})


def _usable_cpus(node: Node, cpus: frozenset[int] | None) -> tuple[int, ...]:
    usable = tuple(cpu for cpu in node.cpus if cpus is None or cpu in cpus)
    if not usable:
        raise VmplaceError(
            f"this process may use no CPU of node {node.nid}", hint="run it outside of cpusets, as root"
        )
    return usable


@dataclass
class _Runs:
    """Measures one thing after the other; ``todo`` of them there are."""

    host: HostTopology
    workers: Mapping[int, tuple[int, ...]]
    duration_ms: int
    report: Report
    todo: int
    done: int = 0

    def alone(self, cpu_nid: int, mem_nid: int) -> NodePath:
        """Return what all CPUs of a node read from the memory of one node."""
        read = self._read(f"node {cpu_nid} reads node {mem_nid}", self._streams(cpu_nid), (mem_nid,))
        return NodePath(cpu_nid, mem_nid, self._rates(read)[cpu_nid, mem_nid])

    def idle(self, path: NodePath) -> NodePath:
        """Return the path with its latency."""
        chaser = Reader(self.workers[path.cpu_nid][-1], path.cpu_nid, chases=True)
        what = f"node {path.cpu_nid} waits for node {path.mem_nid}"
        read = self._read(what, [chaser], (path.mem_nid,))
        return NodePath(path.cpu_nid, path.mem_nid, path.bytes_per_s, round(read.line_ns(), 2))

    def loaded(self, nid: int, streams: int) -> LoadedLatency:
        """Return the latency of a node's own memory while so many of its CPUs stream from it."""
        *others, last = self.workers[nid]
        readers = [Reader(last, nid, chases=True), *(Reader(cpu, nid) for cpu in others[:streams])]
        read = self._read(f"node {nid} waits beside {streams} streams", readers, (nid,))
        return LoadedLatency(nid, streams, self._rates(read)[nid, nid], round(read.line_ns(), 2))

    def together(self, nids: tuple[int, ...]) -> WorkerSet:
        """Return what nodes read from all memory, all at once, and the weights that follow."""
        readers = [reader for nid in nids for reader in self._streams(nid)]
        what = f"nodes {', '.join(map(str, nids))} read all at once"
        rates = self._rates(self._read(what, readers, self.host.memory_nids))
        weights = bandwidth_weights(replace(self.host, worker_bandwidths={nids: rates}), nids)
        paths = tuple(NodePath(cpu_nid, mem_nid, rate) for (cpu_nid, mem_nid), rate in rates.items())
        return WorkerSet(nids, paths, {nid: round(weight, 6) for nid, weight in weights.items()})

    def _streams(self, nid: int) -> list[Reader]:
        return [Reader(cpu, nid) for cpu in self.workers[nid]]

    def _read(self, what: str, readers: Iterable[Reader], mem_nids: tuple[int, ...]) -> Readings:
        self.report(what, self.done, self.todo)
        self.done += 1
        return readings(self.host, tuple(readers), mem_nids, self.duration_ms)

    def _rates(self, read: Readings) -> dict[tuple[int, int], int]:
        """Return bytes/s by (CPU nid, memory nid); raises VmplaceError where nothing was read."""
        rates = read.bytes_per_s()
        for (cpu_nid, mem_nid), rate in rates.items():
            if not rate:
                raise VmplaceError(
                    f"CPUs of node {cpu_nid} read nothing of node {mem_nid} within {self.duration_ms} ms",
                    hint="measure for longer, or on a less busy host: --duration-ms",
                )
        return rates
