"""Read what the host is made of from sysfs."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from vmplace.errors import OutsideError, UnsupportedHostError
from vmplace.outside import read_text, read_whole, whole
from vmplace.topology.cpulist import parse_cpulist
from vmplace.topology.distance import read_distances, read_nids
from vmplace.topology.hmat import read_hmat
from vmplace.topology.host import HostTopology, HugepagePool, Node

MEMINFO_LINE = re.compile(r"Node [0-9]+ ([\w()]+): +([0-9]{1,15}) kB")


def read_host(sysfs: Path = Path("/sys")) -> HostTopology:
    """Return the host's nodes, CPUs, memory, distances and what HMAT says.

    Raises UnsupportedHostError on a kernel without NUMA support, VmplaceError if nodes come and go
    meanwhile.
    """
    nids = read_nids(sysfs)
    if not nids:
        raise UnsupportedHostError(
            "this kernel shows no NUMA nodes", hint="boot a kernel with CONFIG_NUMA=y, without numa=off"
        )
    online = read_online_cpus(sysfs)
    nodes = tuple(read_node(nid, online, sysfs) for nid in nids)
    bandwidths, latencies = read_hmat(
        {node.nid for node in nodes if node.cpus}, [node.nid for node in nodes if node.memory_bytes], sysfs
    )
    siblings = _read_smt_siblings(nodes, sysfs)
    distances, sockets = read_distances(sysfs), _read_sockets(nodes, sysfs)
    return HostTopology(nodes, distances, siblings, bandwidths, latencies, sockets=sockets)


def parse_node_meminfo(text: str) -> dict[str, int]:
    """Parse nodeN/meminfo: bytes by name; names without a unit (HugePages_*) are left out."""
    return {name: int(kib) << 10 for name, kib in MEMINFO_LINE.findall(text)}


def read_free_bytes(nid: int, sysfs: Path = Path("/sys")) -> int:
    """Return the free memory of one node, now; cheap enough for every window."""
    path = sysfs / f"devices/system/node/node{nid}/meminfo"
    return parse_node_meminfo(read_text(path)).get("MemFree", 0)


def read_node(nid: int, online: frozenset[int] | None = None, sysfs: Path = Path("/sys")) -> Node:
    """Return one node as it is now, with those of its CPUs that are ``online``."""
    root = sysfs / f"devices/system/node/node{nid}"
    memory = parse_node_meminfo(read_text(root / "meminfo"))
    cpus = parse_cpulist(read_text(root / "cpulist"))
    return Node(
        nid=nid,
        cpus=tuple(cpu for cpu in cpus if online is None or cpu in online),
        memory_bytes=memory.get("MemTotal", 0),
        free_bytes=memory.get("MemFree", 0),
        hugepages=_read_hugepages(root),
        inactive_file_bytes=memory.get("Inactive(file)", 0),
    )


def read_online_cpus(sysfs: Path) -> frozenset[int] | None:
    """Return the online CPUs, or None where the kernel cannot take CPUs offline."""
    listed = read_online_list(sysfs)
    return None if listed is None else frozenset(parse_cpulist(listed))


def read_present_cpus(sysfs: Path) -> frozenset[int]:
    """Return the CPUs that are there, online or not; none where that is not known."""
    try:
        return frozenset(parse_cpulist(read_text(sysfs / "devices/system/cpu/present").strip()))
    except (OSError, OutsideError):
        return frozenset()


def read_online_list(sysfs: Path) -> str | None:
    """Return the list of online CPUs as the kernel writes it, or None where it cannot take CPUs offline."""
    try:
        return read_text(sysfs / "devices/system/cpu/online").strip()
    except FileNotFoundError:
        return None


def _read_hugepages(root: Path) -> tuple[HugepagePool, ...]:
    pools = []
    for pool in root.glob("hugepages/hugepages-*kB"):
        size = whole(pool.name.removeprefix("hugepages-").removesuffix("kB")) << 10
        total = read_whole(pool / "nr_hugepages")
        pools.append(HugepagePool(size, total, read_whole(pool / "free_hugepages")))
    return tuple(sorted(pools, key=lambda pool: pool.page_size_bytes))


def _read_smt_siblings(nodes: tuple[Node, ...], sysfs: Path) -> Mapping[int, tuple[int, ...]]:
    siblings = {}
    for cpu in (cpu for node in nodes for cpu in node.cpus):
        path = sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            siblings[cpu] = parse_cpulist(read_text(path))
        except OSError:
            # The directory goes with the CPU: taken offline since the list was read.
            continue
    return siblings


def _read_sockets(nodes: tuple[Node, ...], sysfs: Path) -> int | None:
    """Return to how many processors the nodes' first CPUs belong, None where the kernel does not tell."""
    found = set()
    for cpu in (node.cpus[0] for node in nodes if node.cpus):
        try:
            found.add(read_text(sysfs / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id").strip())
        except OSError:
            return None
    return len(found) or None


def read_cache_bytes(cpu: int, sysfs: Path = Path("/sys")) -> int:
    """Return the size of the largest cache of a CPU, 0 where the kernel does not tell."""
    sizes = [0]
    for path in (sysfs / f"devices/system/cpu/cpu{cpu}/cache").glob("index*/size"):
        with contextlib.suppress(OSError, OutsideError):
            sizes.append(whole(read_text(path).strip().removesuffix("K")) << 10)
    return max(sizes)
