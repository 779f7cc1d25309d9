"""How fast do the CPUs of each node really read the memory of each node, alone and all at once?

1. Each node pair alone: all CPUs of the one read memory of the other.
2. Each node pair once more: one CPU reads a line at a time.  That is the latency of an idle host.
3. Each node's own memory: one CPU reads a line at a time while more and more of the others stream from it
   (loaded_latency.py).
4. Two paths at once that may share a link (shared_links.py).
5. Each sensible set of worker nodes at once, every CPU reading from all nodes in turn, as an application
   does whose pages are interleaved (BWAP, section III-A3): the figures that canonical weights come from.
   Sensible: each node with its nearest ones, of every size; scattered sets are nobody's choice.

Limits: reading only; guests and others that run meanwhile take their part, so calibrate an idle host.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vmplace.errors import VmplaceError
from vmplace.topology.bandwidth import bandwidth_weights
from vmplace.topology.calibration import (
    Calibration,
    LoadedLatency,
    MachineIdentity,
    NodePath,
    TwoPaths,
    WorkerSet,
)
from vmplace.topology.host import HostTopology, Node
from vmplace.topology.shared_links import Contest, contests
from vmplace.topology.streams import Reader, Readings, chased_mib, readings
from vmplace.topology.sysfs import read_cache_bytes

LOADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""So many streams beside a CPU that waits for lines, until more of them read no more."""
NO_MORE = 1.02
"""Streams that read less than so many times what fewer read may have filled the controller."""
PATIENCE = 2
"""So many numbers of streams without gain end it: a few of them may have filled a way that they share."""

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
    sets = worker_sets(host)
    if not pairs:
        raise VmplaceError(
            "this host has no node with CPUs, or none with memory",
            hint="`lscpu --extended` and `lsmem` show what is online; chcpu and chmem change it",
        )
    chased = chased_mib(host, max(read_cache_bytes(mine[0]) for mine in workers.values()))
    runs = _Runs(host, workers, duration_ms, report, chased)
    runs.todo = len(pairs) + len(sets) + (len(pairs) + sum(map(runs.most_loads, workers)) if chased else 0)
    started = time.time()
    paths = tuple(runs.alone(*pair) for pair in pairs)
    if chased:
        paths = tuple(runs.idle(path) for path in paths)
    loaded = tuple(one for nid in workers for one in runs.loaded(nid)) if chased else ()
    tried = contests(known_by(host, paths))
    runs.todo += len(tried)
    at_once = tuple(runs.at_once(one) for one in tried)
    together = tuple(runs.together(nids) for nids in sets)
    return Calibration(
        machine=machine,
        measured_at=started,
        paths=paths,
        worker_sets=together,
        loaded=loaded,
        at_once=at_once,
        cpu_share=round(runs.cpu_share, 3),
    )


def known_by(host: HostTopology, paths: Iterable[NodePath]) -> HostTopology:
    """Return the host with what was measured so far."""
    return replace(
        host, idle_latencies={(one.cpu_nid, one.mem_nid): one.latency_ns for one in paths if one.latency_ns}
    )


def worker_sets(host: HostTopology) -> tuple[tuple[int, ...], ...]:
    """Return the sets of nodes that guests sensibly run on: each node with its nearest, of every size."""
    nids = [node.nid for node in host.nodes if node.cpus]
    sets = set()
    for nid in nids:
        near = sorted(nids, key=lambda other, nid=nid: (host.distances[nid, other], other != nid, other))  # type: ignore[misc]
        sets |= {tuple(sorted(near[:size])) for size in range(1, len(nids) + 1)}
    return tuple(sorted(sets, key=lambda one: (len(one), one)))


def spread_by_core(cpus: Sequence[int], siblings: Mapping[int, tuple[int, ...]]) -> list[int]:
    """Return the CPUs in an order in which the first ones are of cores that are far apart.

    Neighbours may share a cache and a way to memory that a few of them fill; threads of a core share it all.

    >>> spread_by_core(range(8), {cpu: (cpu & ~1, cpu | 1) for cpu in range(8)})
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    order: list[int] = []
    rest = list(cpus)
    while rest:
        first = [cpu for cpu in rest if min({cpu, *siblings.get(cpu, ())} & {*rest}) == cpu]
        bits = max(len(first) - 1, 1).bit_length()
        order += [first[at] for at in _bit_reversed(bits) if at < len(first)]
        rest = [cpu for cpu in rest if cpu not in {*first}]
    return order


def _bit_reversed(bits: int) -> list[int]:
    """Return 0 to 2 ** bits - 1, each far from those before it."""
    return [int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits)]


def _usable_cpus(node: Node, cpus: frozenset[int] | None) -> tuple[int, ...]:
    usable = tuple(cpu for cpu in node.cpus if cpus is None or cpu in cpus)
    if not usable:
        raise VmplaceError(
            f"this process may use no CPU of node {node.nid}", hint="run it outside of cpusets, as root"
        )
    return usable


@dataclass
class _Runs:
    """Measures one thing after the other; ``todo`` of them there are, of which more become known."""

    host: HostTopology
    workers: Mapping[int, tuple[int, ...]]
    duration_ms: int
    report: Report
    chased_mib: int
    todo: int = 0
    done: int = 0
    cpu_share: float = 1.0

    def alone(self, cpu_nid: int, mem_nid: int) -> NodePath:
        """Return what all CPUs of a node read from the memory of one node."""
        read = self._read(f"node {cpu_nid} reads node {mem_nid}", self._streams(cpu_nid), (mem_nid,))
        return NodePath(cpu_nid, mem_nid, self._rates(read)[cpu_nid, mem_nid])

    def idle(self, path: NodePath) -> NodePath:
        """Return the path with its latency."""
        what = f"node {path.cpu_nid} waits for node {path.mem_nid}"
        read = self._read(what, [self._chaser(path.cpu_nid)], (path.mem_nid,))
        return NodePath(path.cpu_nid, path.mem_nid, path.bytes_per_s, round(read.line_ns(), 2))

    def most_loads(self, nid: int) -> int:
        """Return how many numbers of streams there are to be tried at a node."""
        return len(self._numbers_of_streams(nid))

    def loaded(self, nid: int) -> Iterator[LoadedLatency]:
        """Yield the latency of a node's own memory beside more and more streams, until these read no more."""
        most, left, todo = 0, PATIENCE, self._numbers_of_streams(nid)
        for tried, streams in enumerate(todo):
            readers = [self._chaser(nid), *(Reader(cpu, nid) for cpu in self._others(nid)[:streams])]
            read = self._read(f"node {nid} waits beside {streams} streams", readers, (nid,))
            rate = self._rates(read)[nid, nid]
            yield LoadedLatency(nid, streams, rate, round(read.line_ns(), 2))
            most, left = max(most, rate), PATIENCE if rate > NO_MORE * most else left - 1
            if not left:
                self.todo -= len(todo) - tried - 1
                return

    def _numbers_of_streams(self, nid: int) -> list[int]:
        most = len(self._others(nid)) if self.host.node(nid).memory_bytes else 0
        return sorted({min(one, most) for one in LOADS if most})

    def _others(self, nid: int) -> list[int]:
        """Return the node's CPUs that may stream beside the one that chases: none of its core."""
        chaser = self.workers[nid][0]
        spread = spread_by_core(self.workers[nid], self.host.smt_siblings)
        return [cpu for cpu in spread if cpu not in {chaser, *self.host.smt_siblings.get(chaser, ())}]

    def at_once(self, contest: Contest) -> TwoPaths:
        """Return what two paths of different nodes give that are read at once, each CPU from its own."""
        (one_cpu, one_mem), (other_cpu, other_mem) = contest.one, contest.other
        what = f"nodes {one_cpu} and {other_cpu} read nodes {one_mem} and {other_mem}"
        readers = [*self._streams(one_cpu, one_mem), *self._streams(other_cpu, other_mem)]
        rates = self._rates(self._read(what, readers, (one_mem, other_mem)))
        return TwoPaths(
            NodePath(one_cpu, one_mem, rates[contest.one]),
            NodePath(other_cpu, other_mem, rates[contest.other]),
        )

    def together(self, nids: tuple[int, ...]) -> WorkerSet:
        """Return what nodes read from all memory, all at once, and the weights that follow."""
        readers = [reader for nid in nids for reader in self._streams(nid)]
        what = f"nodes {', '.join(map(str, nids))} read all at once"
        rates = self._rates(self._read(what, readers, self.host.memory_nids))
        weights = bandwidth_weights(replace(self.host, worker_bandwidths={nids: rates}), nids)
        paths = tuple(NodePath(cpu_nid, mem_nid, rate) for (cpu_nid, mem_nid), rate in rates.items())
        return WorkerSet(nids, paths, {nid: round(weight, 6) for nid, weight in weights.items()})

    def _streams(self, nid: int, mem_nid: int | None = None) -> list[Reader]:
        return [Reader(cpu, nid, of=mem_nid) for cpu in self.workers[nid]]

    def _chaser(self, nid: int) -> Reader:
        return Reader(self.workers[nid][0], nid, self.chased_mib)

    def _read(self, what: str, readers: Iterable[Reader], mem_nids: tuple[int, ...]) -> Readings:
        self.report(what, self.done, self.todo)
        self.done += 1
        read = readings(self.host, tuple(readers), mem_nids, self.duration_ms)
        self.cpu_share = min(self.cpu_share, read.cpu_share)
        return read

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
