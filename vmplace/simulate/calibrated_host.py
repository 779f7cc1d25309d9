"""What would ``vmplace calibrate`` find on a simulated host?  By the model, without errors of measurement.

The same figures as on a real host (topology/calibration_runs.py) go the same way to what plans know of it
(topology/shared_links.py, loaded_latency.py): bandwidth and latency of each pair alone, latency beside
streams, and what all CPUs get that read at once.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from vmplace.model.described_memory import LINE_BYTES
from vmplace.model.memory_system import Demand, solved
from vmplace.model.metrics import Matrix
from vmplace.simulate.host_file import SimulatedHost
from vmplace.topology.host import HostTopology
from vmplace.topology.loaded_latency import LoadedPoint, measured_queue
from vmplace.topology.shared_links import shared_links

STREAM_MLP = 10.0
"""Lines that a CPU that streams has under way: as many as have a line fill buffer."""
NO_WORK_NS = 0.1

Pairs = dict[tuple[int, int], int]


def as_calibrated(host: HostTopology, simulated: SimulatedHost) -> HostTopology:
    """Return ``host``, which has nodes, CPUs and distances, with what a calibration tells of it."""
    system, nids = simulated.system, host.nids
    pairs = [(i, j) for i in range(len(nids)) for j in range(len(nids)) if system.controller[j] > 0]
    alone = {(nids[i], nids[j]): _bytes_per_s(_alone(simulated, i, j)) for i, j in pairs}
    asking = [(i, j) for i, j in pairs if simulated.cpus[i] > 0]
    latencies = {(nids[i], nids[j]): max(round(float(system.latency[i, j])), 1) for i, j in asking}
    together = {_cpu_nids(host): _at_once(simulated, nids)}
    host = replace(host, bandwidths=alone, latencies=latencies, worker_bandwidths=together)
    local = {a: (ns, float(alone[a, a])) for (a, b), ns in latencies.items() if a == b}
    queue = measured_queue(
        _loaded(simulated, nids),
        {nid: float(system.latency[nids.index(nid), nids.index(nid)]) for nid in local},
        {nid: served for nid, (_, served) in local.items()},
    )
    return replace(host, links=shared_links(host), queue=queue)


def _cpu_nids(host: HostTopology) -> tuple[int, ...]:
    return tuple(node.nid for node in host.nodes if node.cpus)


def _bytes_per_s(lines_per_ns: float) -> int:
    return max(round(lines_per_ns * LINE_BYTES * 1e9), 1)


def _alone(host: SimulatedHost, i: int, j: int) -> float:
    """Return the lines a ns that a lone reader on node i gets from node j: its narrowest part of the way."""
    passes = host.system.visits[i, j]
    return float((host.system.capacities[passes > 0] / passes[passes > 0]).min())


def _at_once(host: SimulatedHost, nids: tuple[int, ...]) -> Pairs:
    """Return the bytes/s of each node's CPUs from each node's memory while all read from all in turn."""
    system = host.system
    readers, memory = np.flatnonzero(host.cpus > 0), np.flatnonzero(system.controller > 0)
    shares = np.zeros((len(readers), len(nids), len(nids)))
    for row, node in enumerate(readers):
        shares[row, node, memory] = 1 / len(memory)
    load = solved(system, _streams(shares, host.cpus[readers]))
    waits = system.visits @ system.waits(load.rates @ _uses(shares, system.visits))
    latency = system.latency + waits
    return {
        (nids[i], nids[j]): _bytes_per_s(host.cpus[i] * STREAM_MLP / latency[i, j])
        for i in readers
        for j in memory
    }


def _loaded(host: SimulatedHost, nids: tuple[int, ...]) -> Iterable[LoadedPoint]:
    """Yield what a line of each node's own memory takes beside 1, 2, ... streams of its CPUs."""
    system = host.system
    for node in np.flatnonzero((host.cpus > 1) & (system.controller > 0)).tolist():
        shares = np.zeros((1, len(nids), len(nids)))
        shares[0, node, node] = 1.0
        for streams in range(1, int(host.cpus[node])):
            load = solved(system, _streams(shares, np.array([float(streams)])))
            yield LoadedPoint(nids[node], _bytes_per_s(float(load.rates[0])), float(load.latencies[0]))


def _streams(shares: Matrix, cpus: Matrix) -> Demand:
    count = len(shares)
    return Demand(shares, cpus, np.full(count, NO_WORK_NS), np.full(count, STREAM_MLP))


def _uses(shares: Matrix, visits: Matrix) -> Matrix:
    uses: Matrix = np.einsum("gkj,kjr->gr", shares, visits)
    return uses
