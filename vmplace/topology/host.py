"""What is the host made of: nodes, CPUs, memory, distances, bandwidths."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class HugepagePool:
    """The hugetlb pool of one page size on one node."""

    page_size_bytes: int
    total: int
    free: int


@dataclass(frozen=True)
class Node:
    """One NUMA node; it may lack CPUs (CXL memory) or memory.

    ``inactive_file_bytes``: file cache that nobody used lately, which the kernel drops for whoever asks.
    """

    nid: int
    cpus: tuple[int, ...]
    memory_bytes: int
    free_bytes: int
    hugepages: tuple[HugepagePool, ...] = ()
    inactive_file_bytes: int = 0

    @property
    def spare_bytes(self) -> int:
        """Return how much whoever asks gets, without that anybody's memory goes to disk."""
        return self.free_bytes + self.inactive_file_bytes


@dataclass(frozen=True)
class NodeLink:
    """A connection of two nodes, whose bandwidth all paths share that pass it, in either direction."""

    nids: tuple[int, int]
    bytes_per_s: int


@dataclass(frozen=True)
class HostTopology:
    """The nodes of the host, ascending by nid; nids may be sparse.

    ``distances[from_nid, to_nid]`` is the SLIT value (10 = self).  ``bandwidths`` (bytes/s) and
    ``latencies`` (ns) are indexed by (cpu nid, memory nid) and hold only what firmware (HMAT) or a
    measurement gave: an absent pair is unknown.  ``worker_bandwidths[worker nids]`` holds what was measured
    while all CPUs of these nodes read at once.  ``smt_siblings[cpu]`` includes the CPU itself.
    ``idle_latencies`` (ns): what a line takes while nobody else reads, where a calibration measured it; then
    ``links``: those that paths share, as far as that shows it (shared_links.py), none: each path has its own,
    and ``queue``: how long accesses wait at a busy controller (loaded_latency.py), None: not known.
    ``sockets``: how many processors there are, None: not known.
    """

    nodes: tuple[Node, ...]
    distances: Mapping[tuple[int, int], int]
    smt_siblings: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    bandwidths: Mapping[tuple[int, int], int] = field(default_factory=dict)
    latencies: Mapping[tuple[int, int], int] = field(default_factory=dict)
    worker_bandwidths: Mapping[tuple[int, ...], Mapping[tuple[int, int], int]] = field(default_factory=dict)
    idle_latencies: Mapping[tuple[int, int], float] = field(default_factory=dict)
    links: tuple[NodeLink, ...] = ()
    queue: float | None = None
    sockets: int | None = None

    @cached_property
    def nids(self) -> tuple[int, ...]:
        """Return all nids, ascending."""
        return tuple(node.nid for node in self.nodes)

    @cached_property
    def memory_nids(self) -> tuple[int, ...]:
        """Return the nids of nodes that have memory."""
        return tuple(node.nid for node in self.nodes if node.memory_bytes)

    @cached_property
    def has_split_sockets(self) -> bool:
        """Tell whether a socket has several nodes with CPUs (NPS, SNC), as far as is known."""
        return self.sockets is not None and sum(bool(node.cpus) for node in self.nodes) > self.sockets

    def node(self, nid: int) -> Node:
        """Return the node ``nid``; raises KeyError for a nid the host does not have."""
        for node in self.nodes:
            if node.nid == nid:
                return node
        raise KeyError(nid)

    def nid_of_cpu(self, cpu: int) -> int | None:
        """Return the node of host CPU ``cpu``, or None for a CPU that is offline or unknown."""
        return self._nid_by_cpu.get(cpu)

    def nids_of_cpus(self, cpus: tuple[int, ...]) -> tuple[int, ...]:
        """Return the nids that hold at least one of ``cpus``, ascending."""
        # Most vCPUs of a host may run on the same CPUs.
        found, known = self._nids_by_cpus, self._nid_by_cpu
        if cpus not in found:
            found[cpus] = tuple(sorted({known[cpu] for cpu in cpus if cpu in known}))
        return found[cpus]

    @cached_property
    def _nids_by_cpus(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        return {}

    @cached_property
    def _nid_by_cpu(self) -> Mapping[int, int]:
        return {cpu: node.nid for node in self.nodes for cpu in node.cpus}
