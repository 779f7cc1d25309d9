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

from vmplace.errors import ConfigError
from vmplace.model.described_memory import LOCAL_LATENCY_NS, MIB, described_memory, lines_per_ns
from vmplace.model.memory_system import Link, MemorySystem
from vmplace.model.metrics import Matrix
from vmplace.model.published import CARREFOUR_2013

PAGE_BYTES = 4096


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
        return parse_host(path.read_text(), name=path.stem)
    except OSError as err:
        raise ConfigError(f"cannot be read ({err.strerror})", place=str(path)) from err
    except UnicodeDecodeError as err:
        raise ConfigError("is not text", place=str(path)) from err


def parse_host(text: str, *, name: str) -> SimulatedHost:
    """Return the host that a TOML text describes; raises ConfigError."""
    try:
        raw = tomllib.loads(text)
        return _host(raw, name)
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(str(err), place=name) from err
    except KeyError as err:
        raise ConfigError(f"lacks {err.args[0]!r}", place=name, hint="see docs/simulate.md") from err
    except (TypeError, ValueError) as err:
        raise ConfigError(str(err), place=name, hint="see docs/simulate.md") from err


def _host(raw: dict[str, Any], name: str) -> SimulatedHost:
    nodes = raw["node"]
    nids = tuple(int(node["nid"]) for node in nodes)
    if list(nids) != sorted(set(nids)):
        raise ValueError(f"node ids must ascend: {nids}")
    distances = _square(raw, "distances", len(nids))
    bandwidths = _square(raw, "bandwidth_mib_per_s", len(nids))
    memory = np.array([node.get("memory_mib", 0) for node in nodes], float)
    cpus = np.array([node.get("cpus", 0) for node in nodes], float)
    if not cpus.any() or not memory.any() or min(cpus.min(), memory.min()) < 0:
        raise ValueError("a host needs CPUs and memory, and no negative numbers of them")
    system = described_memory(
        nids,
        distances,
        bandwidths,
        memory,
        links=_links(raw["link"], nids) if "link" in raw else None,
        local_latency_ns=float(raw.get("local_latency_ns", LOCAL_LATENCY_NS)),
        queue=float(raw.get("queue", CARREFOUR_2013.queue)),
    )
    return SimulatedHost(name, system, cpus, memory * (MIB // PAGE_BYTES))


def _square(raw: dict[str, Any], key: str, count: int) -> Matrix:
    matrix: Matrix = np.array(raw[key], float)
    if matrix.shape != (count, count) or not (np.isfinite(matrix) & (matrix > 0)).all():
        raise ValueError(f"{key} must be {count} rows of {count} positive numbers, as there are nodes")
    return matrix


def _links(tables: list[dict[str, Any]], nids: tuple[int, ...]) -> list[Link]:
    links = []
    for table in tables:
        a, b = (nids.index(nid) for nid in table["nids"])
        rate = float(lines_per_ns(np.array(float(table["bandwidth_mib_per_s"]))))
        if a == b or not rate > 0:
            raise ValueError(f"a link joins two nodes and has a bandwidth: {table}")
        links.append(Link((a, b), rate))
    return links
