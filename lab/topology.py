"""What NUMA machine does QEMU emulate?  A TOML file says it; this turns it into QEMU's arguments.

Linux numbers nodes in the order in which the SRAT first names them, CPUs before memory.  So nodes without
CPUs come last, and a gap in the ids is a node that has only CPUs that could be, but are not, plugged in.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from lab.errors import LabError
from vmplace.errors import OutsideError
from vmplace.outside import error_text, parse_toml

MIB = 1 << 20
GIB = 1 << 30
TOPOLOGIES = Path(__file__).with_name("topologies")
# pc_q35.c (QEMU 10.0): RAM that does not fit below 0xb0000000 is cut at 2 GiB and continues at 4 GiB.
Q35_WHOLE_BELOW = 0xB0000000
Q35_CUT = 2 * GIB
ABOVE_HOLE = 4 * GIB
# -cpu qemu64 with many features hung; this one warns about what TCG lacks, but works.
CPU_MODEL = "EPYC-Rome-v2"
# Distance 10 is a local access; 100 ns is what lab.md's cost model takes for it.
LOCAL_LATENCY_NS = 100


@dataclass(frozen=True)
class LabNode:
    """One node of the emulated host; no CPUs or no memory is 0, which here is an answer."""

    nid: int
    cpus: int
    memory_bytes: int


@dataclass(frozen=True)
class LabTopology:
    """The emulated machine.

    ``distances[i][j]`` (10 = self) and ``bandwidth_mib_per_s[i][j]`` go from ``nodes[i]`` to ``nodes[j]``;
    ``hmat`` tells the host latencies and bandwidths through ACPI, too.
    """

    name: str
    description: str
    nodes: tuple[LabNode, ...]
    threads_per_core: int
    distances: tuple[tuple[int, ...], ...]
    bandwidth_mib_per_s: tuple[tuple[int, ...], ...]
    hmat: bool

    @property
    def nids(self) -> tuple[int, ...]:
        """Return the node ids, ascending; they may have gaps."""
        return tuple(node.nid for node in self.nodes)

    @property
    def memory_bytes(self) -> int:
        """Return the host's memory."""
        return sum(node.memory_bytes for node in self.nodes)

    @property
    def cpus_per_node(self) -> int:
        """Return how many CPUs each node that has any has."""
        return max(node.cpus for node in self.nodes)


@dataclass(frozen=True)
class MemoryRange:
    """Host-physical addresses [start, end) that belong to a node."""

    start: int
    end: int
    nid: int


def topology_names() -> list[str]:
    """Return the names of the topologies that come with the lab."""
    return sorted(path.stem for path in TOPOLOGIES.glob("*.toml"))


def read_topology(name: str, folder: Path = TOPOLOGIES) -> LabTopology:
    """Return the topology of that name."""
    path = folder / f"{name}.toml"
    if not path.exists():
        raise LabError(f"there is no topology {name!r}", hint=f"known: {', '.join(topology_names())}")
    return parse_topology(path.read_text(), name=name)


def parse_topology(text: str, *, name: str) -> LabTopology:
    """Parse a topology file; raises LabError for a machine that QEMU or Linux would not make so."""
    try:
        topology = _from_table(msgspec.convert(parse_toml(text), _File), name)
    except (tomllib.TOMLDecodeError, OutsideError, msgspec.ValidationError) as err:
        raise LabError(
            f"topology {name}: {error_text(err)}", hint="compare with the other files of the folder"
        ) from err
    _check(topology)
    return topology


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nid: Annotated[int, msgspec.Meta(ge=0, le=63)]
    cpus: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    memory_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 0


class _Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For the simulator, which reads the same files; QEMU knows no links."""

    nids: tuple[int, int]
    bandwidth_mib_per_s: float


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a topology file may say; 63 nodes are more than QEMU's machine takes."""

    description: str
    node: Annotated[tuple[_Node, ...], msgspec.Meta(min_length=1, max_length=64)]
    distances: tuple[tuple[Annotated[int, msgspec.Meta(ge=10, le=254)], ...], ...]
    bandwidth_mib_per_s: tuple[tuple[Annotated[int, msgspec.Meta(ge=1, le=10**9)], ...], ...]
    threads_per_core: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    hmat: bool = False
    local_latency_ns: float | None = None
    queue: float | None = None
    link: tuple[_Link, ...] = ()


def _from_table(raw: _File, name: str) -> LabTopology:
    nodes = tuple(LabNode(node.nid, node.cpus, node.memory_mib * MIB) for node in raw.node)
    return LabTopology(
        name=name,
        description=raw.description,
        nodes=nodes,
        threads_per_core=raw.threads_per_core,
        distances=raw.distances,
        bandwidth_mib_per_s=raw.bandwidth_mib_per_s,
        hmat=raw.hmat,
    )


def _check(topology: LabTopology) -> None:
    count = len(topology.nodes)
    with_cpus = [node.cpus > 0 for node in topology.nodes]
    square = all(
        len(matrix) == count and all(len(row) == count for row in matrix)
        for matrix in (topology.distances, topology.bandwidth_mib_per_s)
    )
    faults = {
        "node ids must ascend": list(topology.nids) != sorted(set(topology.nids)),
        "distances and bandwidth_mib_per_s must be square, one row per node": not square,
        "a node's distance to itself is 10": square
        and any(topology.distances[i][i] != 10 for i in range(count)),
        "nodes without CPUs must come last": with_cpus != sorted(with_cpus, reverse=True),
        "nodes with CPUs must have equally many": {node.cpus for node in topology.nodes}
        - {0, topology.cpus_per_node},
        "the first node needs CPUs": not with_cpus[0],
        "a gap needs a node with CPUs after it": not all(with_cpus) and topology.nids != tuple(range(count)),
    }
    for fault, found in faults.items():
        if found:
            raise LabError(f"topology {topology.name}: {fault}", hint="lab/topologies has examples")


def memory_ranges(topology: LabTopology) -> tuple[MemoryRange, ...]:
    """Return the host-physical ranges of all nodes, ascending, as the emulated SRAT lists them."""
    total = topology.memory_bytes
    below = total if total < Q35_WHOLE_BELOW else Q35_CUT
    ranges, offset = [], 0
    for node in topology.nodes:
        end = offset + node.memory_bytes
        parts = [(offset, min(end, below), 0), (max(offset, below), end, ABOVE_HOLE - below)]
        ranges += [MemoryRange(a + shift, b + shift, node.nid) for a, b, shift in parts if a < b]
        offset = end
    return tuple(ranges)


def cpu_nids(topology: LabTopology) -> tuple[int, ...]:
    """Return the node of every CPU, by the number that Linux and QEMU give the CPU."""
    return tuple(node.nid for node in topology.nodes for _ in range(node.cpus))


def qemu_arguments(topology: LabTopology, memory_folder: str) -> list[str]:
    """Return QEMU's arguments for memory, CPUs and NUMA; node memory is a file each in ``memory_folder``."""
    return [
        *("-m", f"{topology.memory_bytes // MIB}M"),
        *_cpu_arguments(topology),
        *_node_arguments(topology, memory_folder),
        *_distance_arguments(topology),
        *(_hmat_arguments(topology) if topology.hmat else []),
    ]


def memory_files(topology: LabTopology) -> list[str]:
    """Return the names of the files that hold the nodes' memory."""
    return [f"node{node.nid}" for node in topology.nodes if node.memory_bytes]


def _sockets(topology: LabTopology) -> range:
    """Return the sockets: one per node id that has CPUs, and per gap between such."""
    return range(1 + max(node.nid for node in topology.nodes if node.cpus))


def _cpu_arguments(topology: LabTopology) -> list[str]:
    threads, per_node = topology.threads_per_core, topology.cpus_per_node
    sockets = _sockets(topology)
    layout = f"sockets={len(sockets)},cores={per_node // threads},threads={threads}"
    every = per_node * len(sockets)
    if set(sockets) <= set(topology.nids):
        return ["-smp", f"{every},{layout}"]
    arguments = ["-smp", f"{per_node},maxcpus={every},{layout}"]
    for socket in sorted((set(topology.nids) & set(sockets)) - {0}):
        for cpu in range(per_node):
            where = f"socket-id={socket},core-id={cpu // threads},thread-id={cpu % threads}"
            arguments += ["-device", f"{CPU_MODEL}-x86_64-cpu,{where}"]
    return arguments


def _node_arguments(topology: LabTopology, memory_folder: str) -> list[str]:
    by_nid = {node.nid: node for node in topology.nodes}
    arguments: list[str] = []
    for nid in range(1 + max(by_nid)):
        node = by_nid.get(nid, LabNode(nid, topology.cpus_per_node, 0))
        options = f"node,nodeid={nid}"
        if node.memory_bytes:
            path = f"{memory_folder}/node{nid}"
            backend = f"memory-backend-file,id=node{nid},size={node.memory_bytes},mem-path={path},share=on"
            arguments += ["-object", backend]
            options += f",memdev=node{nid}"
        if topology.hmat:
            options += f",initiator={nid if node.cpus else _nearest_with_cpus(topology, nid)}"
        arguments += ["-numa", options]
        if node.cpus:
            arguments += ["-numa", f"cpu,node-id={nid},socket-id={nid}"]
    return arguments


def _nearest_with_cpus(topology: LabTopology, nid: int) -> int:
    column = topology.nids.index(nid)
    candidates = [
        (row[column], node.nid)
        for row, node in zip(topology.distances, topology.nodes, strict=True)
        if node.cpus
    ]
    return min(candidates)[1]


def _distance_arguments(topology: LabTopology) -> list[str]:
    """QEMU wants either all distances or none: those of absent nodes are 254, "far", and never seen."""
    known = {
        (a, b): topology.distances[i][j]
        for i, a in enumerate(topology.nids)
        for j, b in enumerate(topology.nids)
    }
    arguments = []
    every = range(1 + max(topology.nids))
    for a in every:
        for b in every:
            if a != b:
                arguments += ["-numa", f"dist,src={a},dst={b},val={known.get((a, b), 254)}"]
    return arguments


def _hmat_arguments(topology: LabTopology) -> list[str]:
    arguments = []
    for i, initiator in enumerate(topology.nodes):
        for j, target in enumerate(topology.nodes):
            if not initiator.cpus or not target.memory_bytes:
                continue
            pair = f"hmat-lb,initiator={initiator.nid},target={target.nid},hierarchy=memory"
            latency = LOCAL_LATENCY_NS * topology.distances[i][j] // 10
            arguments += ["-numa", f"{pair},data-type=access-latency,latency={latency}"]
            bandwidth = topology.bandwidth_mib_per_s[i][j]
            arguments += ["-numa", f"{pair},data-type=access-bandwidth,bandwidth={bandwidth}M"]
    return arguments
