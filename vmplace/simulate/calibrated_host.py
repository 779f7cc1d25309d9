"""What would ``vmplace calibrate`` find on a simulated host?  By the model, without errors of measurement.

The same measurements as on a real host (topology/calibration_runs.py), made of CPUs that stream as far as the
host lets them; what follows from them is left to topology/calibration.py.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from vmplace.model.described_memory import LINE_BYTES
from vmplace.model.memory_system import Demand, Load, solved
from vmplace.model.metrics import Matrix
from vmplace.simulate.host_file import SimulatedHost
from vmplace.topology.calibration import (
    Calibration,
    LoadedLatency,
    MachineIdentity,
    NodePath,
    TwoPaths,
    WorkerSet,
    calibrated,
)
from vmplace.topology.calibration_runs import LOADS, known_by
from vmplace.topology.host import HostTopology
from vmplace.topology.shared_links import contests

STREAM_MLP = 10.0
"""Lines that a CPU that streams has under way: as many as have a line fill buffer."""
NO_WORK_NS = 0.1
Stream = tuple[int, Sequence[int], float]
"""A node whose CPUs read, the nodes whose memory they read in turn, and how many CPUs; by index."""


def as_calibrated(host: HostTopology, simulated: SimulatedHost) -> HostTopology:
    """Return ``host``, which has nodes, CPUs and distances, with what a calibration tells of it."""
    index = {nid: i for i, nid in enumerate(host.nids)}
    paths = tuple(
        _path(simulated, index, node.nid, nid) for node in host.nodes if node.cpus for nid in host.memory_nids
    )
    calibration = Calibration(
        machine=MachineIdentity(simulated.name, ()),
        measured_at=0.0,
        paths=paths,
        worker_sets=(_all_at_once(host, simulated, index),),
        loaded=tuple(_loaded(host, simulated, index)),
        at_once=tuple(_two(simulated, index, one.one, one.other) for one in contests(known_by(host, paths))),
    )
    return calibrated(host, calibration)


def _path(simulated: SimulatedHost, index: dict[int, int], cpu_nid: int, mem_nid: int) -> NodePath:
    a, b = index[cpu_nid], index[mem_nid]
    load = _streamed(simulated, [(a, [b], float(simulated.cpus[a]))])
    return NodePath(cpu_nid, mem_nid, _bytes_per_s(load.rates[0]), float(simulated.system.latency[a, b]))


def _two(
    simulated: SimulatedHost, index: dict[int, int], one: tuple[int, int], other: tuple[int, int]
) -> TwoPaths:
    streams = [(index[a], [index[b]], float(simulated.cpus[index[a]])) for a, b in (one, other)]
    rates = _streamed(simulated, streams).rates
    return TwoPaths(NodePath(*one, _bytes_per_s(rates[0])), NodePath(*other, _bytes_per_s(rates[1])))


def _loaded(host: HostTopology, simulated: SimulatedHost, index: dict[int, int]) -> Iterable[LoadedLatency]:
    """Yield what a line of each node's own memory takes beside more and more streams of its CPUs."""
    for node in host.nodes:
        i, most = index[node.nid], len(node.cpus) - 1
        for streams in sorted({min(one, most) for one in LOADS if most > 0 and node.memory_bytes}):
            load = _streamed(simulated, [(i, [i], float(streams))])
            yield LoadedLatency(node.nid, streams, _bytes_per_s(load.rates[0]), float(load.latencies[0]))


def _all_at_once(host: HostTopology, simulated: SimulatedHost, index: dict[int, int]) -> WorkerSet:
    """Return what all nodes get from all memory, which each CPU reads in turn."""
    system, memory = simulated.system, [index[nid] for nid in host.memory_nids]
    readers = [index[node.nid] for node in host.nodes if node.cpus]
    load = _streamed(simulated, [(i, memory, float(simulated.cpus[i])) for i in readers])
    latency = system.latency + system.visits @ system.waits(load.utilisation * system.capacities)
    paths = tuple(
        NodePath(host.nids[i], host.nids[j], _bytes_per_s(simulated.cpus[i] * STREAM_MLP / latency[i, j]))
        for i in readers
        for j in memory
    )
    return WorkerSet(tuple(host.nids[i] for i in readers), paths, {})


def _streamed(simulated: SimulatedHost, streams: Sequence[Stream]) -> Load:
    """Return what comes of it if CPUs read as fast as they can."""
    nodes, count = len(simulated.system.nids), len(streams)
    shares = np.zeros((count, nodes, nodes))
    for row, (node, memory, _) in enumerate(streams):
        shares[row, node, list(memory)] = 1 / len(memory)
    cpus: Matrix = np.array([one for *_, one in streams])
    return solved(
        simulated.system, Demand(shares, cpus, np.full(count, NO_WORK_NS), np.full(count, STREAM_MLP))
    )


def _bytes_per_s(lines_per_ns: float) -> int:
    return max(round(float(lines_per_ns) * LINE_BYTES * 1e9), 1)
