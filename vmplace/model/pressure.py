"""How near is each node's memory to its limit, and by whose accesses?

1. A guest's DRAM accesses per time (counters, or samples) are distributed over the nodes as its traffic
   matrix says, a cache line each.
2. A node's limit is the bandwidth of its memory as measured (``vmplace calibrate``) or given by firmware,
   from the CPUs that get the most of it.

Pressure 0 is idle, 1 is all that was measured.  Queues grow without bound near 1 (model/memory_system.py).
Limits: what devices and the host itself access is not counted, nor what prefetchers load where samples count.
"""

from collections.abc import Iterable, Mapping

from vmplace.model.metrics import TrafficMatrix
from vmplace.topology.host import HostTopology

LINE_BYTES = 64
US_PER_S = 1e6


def memory_limits(host: HostTopology) -> dict[int, float]:
    """Return each node's memory bandwidth in bytes per second, where it is known."""
    limits: dict[int, float] = {}
    for (_, nid), bandwidth in host.bandwidths.items():
        limits[nid] = max(limits.get(nid, 0.0), float(bandwidth))
    return {nid: limit for nid, limit in limits.items() if limit > 0}


def accesses_by_node(traffic: TrafficMatrix | None, dram_per_us: float | None) -> dict[int, float] | None:
    """Return the DRAM accesses per second that each node serves; None where rate or traffic are unknown."""
    if traffic is None or dram_per_us is None:
        return None
    loads = traffic.mc_loads()
    if not loads.sum():
        return dict.fromkeys(traffic.nids, 0.0) if dram_per_us == 0 else None
    rates = loads / loads.sum() * dram_per_us * US_PER_S
    return dict(zip(traffic.nids, rates.tolist(), strict=True))


def memory_pressure(
    host: HostTopology, traffic: TrafficMatrix | None, dram_per_us: float | None
) -> dict[int, float] | None:
    """Return what a guest takes of each node's bandwidth; None where rate, traffic or limits are unknown."""
    limits, accesses = memory_limits(host), accesses_by_node(traffic, dram_per_us)
    if accesses is None or not limits:
        return None
    return {nid: accesses.get(nid, 0.0) * LINE_BYTES / limit for nid, limit in limits.items()}


def node_pressure(guests: Iterable[Mapping[int, float] | None]) -> dict[int, float]:
    """Return the sum over guests by node; guests of whom nothing is known add nothing."""
    total: dict[int, float] = {}
    for guest in guests:
        for nid, share in (guest or {}).items():
            total[nid] = total.get(nid, 0.0) + share
    return total
