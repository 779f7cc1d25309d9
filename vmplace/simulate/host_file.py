"""Which host is simulated?  A TOML file: the lab's topologies are such files, too.

    distances, bandwidth_mib_per_s     matrices, rows = CPU node, columns = memory node
    [[node]] nid, cpus, memory_mib     ascending nids; cpus or memory_mib may be absent
    local_latency_ns = 87.0            optional: latency at distance 10
    queue = 1.218                      optional: see MemorySystem
    [[link]] nids = [a, b], bandwidth_mib_per_s = n      optional: shared links, with shortest routes

Without ``[[link]]`` each pair of nodes has a path of its own in each direction, as wide as the matrix
says; with them only the matrix's diagonal (the controllers) is used.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vmplace.errors import ConfigError, OutsideError, cure_of_reading
from vmplace.model.described_memory import LOCAL_LATENCY_NS, MIB, QUEUE, described_memory, lines_per_ns
from vmplace.model.memory_system import Link, MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.outside import MOST_ID, error_text, finite, parse_toml, read_bytes, toml_cure

PAGE_BYTES = 4096
CURE = "see docs/simulate.md"
HOST_KEYS = {"distances", "bandwidth_mib_per_s", "node", "local_latency_ns", "queue", "link"} | {
    *("description", "threads_per_core", "hmat")  # said for the lab, which has the same files
}
NODE_KEYS, LINK_KEYS = {"nid", "cpus", "memory_mib"}, {"nids", "bandwidth_mib_per_s"}
MOST_BYTES = 1 << 20
MOST_NODES = 64
MOST_MIB, MOST_BANDWIDTH, MOST_DISTANCE = 1 << 30, 1e9, 1e4


@dataclass(frozen=True)
class SimulatedHost:
    """A memory system (ns, accesses per ns), and per node its CPUs and the 4 KiB pages it holds."""

    name: str
    system: MemorySystem
    cpus: Matrix
    capacity_pages: Matrix


def read_host(path: Path) -> SimulatedHost:
    """Read a host file; raises ConfigError."""
    try:
        return parse_host(read_bytes(path, MOST_BYTES).decode(), name=path.stem, place=str(path))
    except OutsideError as err:
        raise ConfigError(str(err), place=str(path), hint=CURE) from err
    except OSError as err:
        reported = f"cannot be read ({err.strerror})"
        raise ConfigError(reported, place=str(path), hint=cure_of_reading(err)) from err
    except UnicodeDecodeError as err:
        raise ConfigError("is not text", place=str(path), hint=cure_of_reading(err)) from err


def parse_host(text: str, *, name: str, place: str | None = None) -> SimulatedHost:
    """Return the host that a TOML text describes; raises ConfigError, with ``place`` (or the name) in it."""
    place = place or name
    try:
        return _host(parse_toml(text), name)
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(error_text(err), place=place, hint=toml_cure(err)) from err
    except KeyError as err:
        raise ConfigError(f"lacks {err.args[0]!r}", place=place, hint=CURE) from err
    except (AttributeError, TypeError, ValueError, OverflowError) as err:
        raise ConfigError(error_text(err), place=place, hint=CURE) from err


def _host(raw: dict[str, Any], name: str) -> SimulatedHost:
    nodes = raw["node"]
    _check_keys(raw, HOST_KEYS, "the host")
    for node in nodes:
        _check_keys(node, NODE_KEYS, "a node")
    nids = tuple(_int(node["nid"], "nid", MOST_ID) for node in nodes)
    if len(nids) > MOST_NODES or list(nids) != sorted(set(nids)):
        raise ValueError(f"node ids must ascend, {MOST_NODES} nodes at most: {nids[:MOST_NODES]}")
    distances = _square(raw, "distances", len(nids))
    bandwidths = _square(raw, "bandwidth_mib_per_s", len(nids))
    memory = np.array([_int(node.get("memory_mib", 0), "memory_mib", MOST_MIB) for node in nodes], float)
    cpus = np.array([_int(node.get("cpus", 0), "cpus", MOST_ID) for node in nodes], float)
    if not cpus.any() or not memory.any():
        raise ValueError("a host needs CPUs and memory")
    system = described_memory(
        nids,
        distances,
        bandwidths,
        memory,
        links=_links(raw["link"], nids) if "link" in raw else None,
        local_latency_ns=finite(
            raw.get("local_latency_ns", LOCAL_LATENCY_NS), least=1, most=1e6, what="local_latency_ns"
        ),
        queue=finite(raw.get("queue", QUEUE), least=0, most=1e3, what="queue"),
    )
    return SimulatedHost(name, system, cpus, memory * (MIB // PAGE_BYTES))


def _square(raw: dict[str, Any], key: str, count: int) -> Matrix:
    rows = raw[key]
    if [len(row) for row in rows] != [count] * count:
        raise ValueError(f"{key} must be {count} rows of {count} positive numbers, as there are nodes")
    most = MOST_DISTANCE if key == "distances" else MOST_BANDWIDTH
    return np.array([[finite(one, least=0.01, most=most, what=key) for one in row] for row in rows], float)


def _links(tables: list[dict[str, Any]], nids: tuple[int, ...]) -> list[Link]:
    links = []
    for table in tables:
        _check_keys(table, LINK_KEYS, "a link")
        ends = [nids.index(nid) for nid in table["nids"] if nid in nids]
        if len(ends) != 2 or len(table["nids"]) != 2 or ends[0] == ends[1]:
            raise ValueError(f"a link joins two nodes of {list(nids)}, not {table['nids']}")
        wide = finite(
            table["bandwidth_mib_per_s"], least=0.01, most=MOST_BANDWIDTH, what="a link's bandwidth_mib_per_s"
        )
        a, b = ends
        rate = float(lines_per_ns(np.array(wide)))
        links.append(Link((a, b), rate))
    return links


def _check_keys(table: dict[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ValueError(f"{what} has an unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")


def _int(value: Any, what: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{what} must be a whole number from 0 to {most}, not {value}")
    return value
