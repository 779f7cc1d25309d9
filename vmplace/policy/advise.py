"""On which nodes would a guest of some size best run?  numad's question (``numad -w``), by what guests do.

1. vCPUs count by how much they run where counters tell, and in full where not; memory by what is present.
2. The fewest nodes that have the cores and the room for all of it together; of these, the nearest to each
   other; then those whose memory serves least of the guests' accesses; then those with most cores.
3. Where even all nodes lack something, all with CPUs and memory are the answer, as the kernel would do.

Differs from numad(8): it ranks nodes by free CPU times free memory, and knows no memory traffic.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from vmplace.policy.fit import Flavour, free_cores, room_bytes
from vmplace.policy.plan import GuestView
from vmplace.topology.host import HostTopology

MOST_NODES = 12
"""All sets of so many nodes are looked at; of more, only sets of nodes that lie near one of them."""


@dataclass(frozen=True)
class Advice:
    """The nodes, ascending, and whether all of the guest fits on them."""

    flavour: Flavour
    nids: tuple[int, ...]
    fits: bool
    free_cores: float
    room_bytes: int


def advise(
    host: HostTopology, guests: Iterable[GuestView], loads: Mapping[int, float], flavour: Flavour
) -> Advice:
    """Return the advice; ``loads``: accesses that each node's memory serves now, in any unit."""
    cores = free_cores(host, guests, really=True)
    room = {node.nid: room_bytes(node) for node in host.nodes}
    useful = tuple(node.nid for node in host.nodes if node.cpus and node.memory_bytes)

    def has_all(nids: tuple[int, ...]) -> bool:
        vcpus, memory = (sum(of[nid] for nid in nids) for of in (cores, room))
        return vcpus >= flavour.vcpus and memory >= flavour.memory_bytes

    def badness(nids: tuple[int, ...]) -> tuple[float, float, float, tuple[int, ...]]:
        far = sum(host.distances.get((a, b), 255) for a in nids for b in nids)
        return far, sum(loads.get(nid, 0.0) for nid in nids), -sum(cores[nid] for nid in nids), nids

    for size in range(1, len(useful) + 1):
        fitting = [nids for nids in _sets(host, useful, size) if has_all(nids)]
        if fitting:
            return _advice(flavour, min(fitting, key=badness), cores, room, fits=True)
    return _advice(flavour, useful, cores, room, fits=False)


def _sets(host: HostTopology, nids: tuple[int, ...], size: int) -> Iterable[tuple[int, ...]]:
    if len(nids) <= MOST_NODES:
        return combinations(nids, size)
    near = {nid: sorted(nids, key=lambda to: (host.distances.get((nid, to), 255), to)) for nid in nids}
    return {tuple(sorted(near[nid][:size])) for nid in nids}


def _advice(
    flavour: Flavour,
    nids: tuple[int, ...],
    cores: Mapping[int, float],
    room: Mapping[int, int],
    *,
    fits: bool,
) -> Advice:
    return Advice(flavour, nids, fits, sum(cores[nid] for nid in nids), sum(room[nid] for nid in nids))
