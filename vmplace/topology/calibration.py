"""How fast do the CPUs of each node really read the memory of each node, alone and all at once?

1. Each node pair alone: all CPUs of the one read memory of the other.
2. Each sensible set of worker nodes at once, every CPU reading from all nodes in turn, as an application
   does whose pages are interleaved (BWAP, section III-A3): the figures that canonical weights come from.
   Sensible: each node with its nearest ones, of every size; scattered sets are nobody's choice.

Kept as JSON together with what identifies the machine, so that a copied file or changed hardware shows.
Limits: reading only; guests and others that run meanwhile take their part, so calibrate an idle host.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from vmplace import native
from vmplace.errors import OutsideError, VmplaceError, cure_of_reading
from vmplace.outside import MOST_ID, lines, parse_json, read_bytes, read_text
from vmplace.topology.bandwidth import bandwidth_weights
from vmplace.topology.host import HostTopology, Node
from vmplace.topology.sysfs import read_host

DEFAULT_PATH = Path("/var/lib/vmplace/bandwidth.json")
SCHEMA_VERSION = 1
MIB = 1 << 20
BUFFER_BYTES = 64 * MIB
"""Of each CPU on each node: with a few CPUs more than any cache holds."""
FREE_SHARE = 4
"""At most this part of a node's free memory is used: its guests may need some meanwhile."""
GIB = 1 << 30

Report = Callable[[str, int, int], None]
"""Takes what is measured next, how many measurements are done, and how many there will be."""


Id = Annotated[int, msgspec.Meta(ge=0, le=MOST_ID)]
BytesPerS = Annotated[int, msgspec.Meta(ge=1, le=1 << 50)]
MOST_BYTES = 64 << 20
"""Of the file: 64 nodes make some 4,000 sets of 4,000 paths at the most."""


class NodePath(msgspec.Struct, frozen=True):
    """What CPUs on one node read from the memory of one node."""

    cpu_nid: Id
    mem_nid: Id
    bytes_per_s: BytesPerS


class WorkerSet(msgspec.Struct, frozen=True):
    """What the nodes gave while all CPUs of ``worker_nids`` read at once, and the weights that follow."""

    worker_nids: tuple[Id, ...]
    paths: tuple[NodePath, ...]
    canonical_weights: dict[int, float]


class MachineIdentity(msgspec.Struct, frozen=True):
    """What must be the same for a calibration to hold: processor, and CPUs and GiB of each node."""

    cpu_model: str
    nodes: tuple[tuple[int, int, int], ...]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured; ``measured_at`` in seconds since 1970."""

    machine: MachineIdentity
    measured_at: float
    paths: tuple[NodePath, ...]
    worker_sets: tuple[WorkerSet, ...]
    schema_version: int = SCHEMA_VERSION


def measured(
    host: HostTopology,
    machine: MachineIdentity,
    *,
    duration_ms: int = 300,
    cpus: frozenset[int] | None = None,
    report: Report = lambda _what, _done, _all: None,
) -> Calibration:
    """Measure the host; it takes about ``duration_ms`` per node pair and per worker set.

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
    started, todo = time.time(), len(pairs) + len(sets)
    alone: dict[tuple[int, int], int] = {}
    for done, (cpu_nid, mem_nid) in enumerate(pairs):
        report(f"node {cpu_nid} reads node {mem_nid}", done, todo)
        alone |= _streamed(host, {cpu_nid: workers[cpu_nid]}, (mem_nid,), duration_ms)
    together = []
    for done, nids in enumerate(sets, start=len(pairs)):
        report(f"nodes {', '.join(map(str, nids))} read all at once", done, todo)
        rates = _streamed(host, {nid: workers[nid] for nid in nids}, host.memory_nids, duration_ms)
        together.append(_worker_set(host, nids, rates))
    return Calibration(machine=machine, measured_at=started, paths=_paths(alone), worker_sets=tuple(together))


def worker_sets(host: HostTopology) -> tuple[tuple[int, ...], ...]:
    """Return the sets of nodes that guests sensibly run on: each node with its nearest, of every size."""
    nids = [node.nid for node in host.nodes if node.cpus]
    sets = set()
    for nid in nids:
        near = sorted(nids, key=lambda other, nid=nid: (host.distances[nid, other], other != nid, other))  # type: ignore[misc]
        sets |= {tuple(sorted(near[:size])) for size in range(1, len(nids) + 1)}
    return tuple(sorted(sets, key=lambda one: (len(one), one)))


def calibrated(host: HostTopology, calibration: Calibration | None) -> HostTopology:
    """Return the host with measured bandwidths in place of firmware's."""
    if calibration is None:
        return host
    known = {(path.cpu_nid, path.mem_nid): path.bytes_per_s for path in calibration.paths}
    together = {
        one.worker_nids: {(path.cpu_nid, path.mem_nid): path.bytes_per_s for path in one.paths}
        for one in calibration.worker_sets
    }
    return replace(host, bandwidths=known, worker_bandwidths=together)


def machine_identity(host: HostTopology, cpuinfo: str) -> MachineIdentity:
    """Return what tells this machine from others; ``cpuinfo`` is the text of /proc/cpuinfo."""
    model = next((line for line in lines(cpuinfo) if line.startswith("model name")), "")
    # The kernel keeps some MiB of each node for itself, more or less with each release.
    nodes = tuple((node.nid, len(node.cpus), math.ceil(node.memory_bytes / GIB)) for node in host.nodes)
    return MachineIdentity(model.partition(":")[2].strip(), nodes)


def read_machine_identity(host: HostTopology, proc: Path = Path("/proc")) -> MachineIdentity:
    """Return the identity of the machine this runs on."""
    return machine_identity(host, read_text(proc / "cpuinfo"))


def encoded(calibration: Calibration) -> bytes:
    """Return what ``read_calibration`` reads."""
    return msgspec.json.format(msgspec.json.encode(calibration), indent=1) + b"\n"


def read_calibration(machine: MachineIdentity, path: Path = DEFAULT_PATH) -> Calibration | None:
    """Return what was measured on this machine, None if nothing was.

    Raises VmplaceError for a file that is no calibration, or one of another machine.
    """
    again = "vmplace calibrate"
    try:
        calibration = parse_json(read_bytes(path, MOST_BYTES), Calibration)
    except FileNotFoundError:
        return None
    except PermissionError as err:
        raise VmplaceError(f"{path} cannot be read: {err.strerror}", hint=cure_of_reading(err)) from err
    except (OSError, OutsideError) as err:
        raise VmplaceError(f"{path} is no calibration: {err}", hint=again) from err
    if calibration.schema_version != SCHEMA_VERSION:
        raise VmplaceError(f"{path} is of version {calibration.schema_version}", hint=again)
    if calibration.machine != machine:
        raise VmplaceError(f"{path} was measured on another machine, or this one was changed", hint=again)
    known = {nid for nid, _, _ in machine.nodes}
    paths = (*calibration.paths, *(path for one in calibration.worker_sets for path in one.paths))
    if not {nid for one in paths for nid in (one.cpu_nid, one.mem_nid)} <= known:
        raise VmplaceError(f"{path} tells of nodes that this machine does not have", hint=again)
    return calibration


def _usable_cpus(node: Node, cpus: frozenset[int] | None) -> tuple[int, ...]:
    usable = tuple(cpu for cpu in node.cpus if cpus is None or cpu in cpus)
    if not usable:
        raise VmplaceError(
            f"this process may use no CPU of node {node.nid}", hint="run it outside of cpusets, as root"
        )
    return usable


def _streamed(
    host: HostTopology, workers: Mapping[int, tuple[int, ...]], mem_nids: tuple[int, ...], duration_ms: int
) -> dict[tuple[int, int], int]:
    """Let all CPUs of ``workers`` read at once; return bytes/s by (cpu nid, memory nid)."""
    cpus = [(cpu, nid) for nid, ids in workers.items() for cpu in ids]
    free = min(node.free_bytes for node in host.nodes if node.nid in mem_nids)
    each = min(BUFFER_BYTES, free // FREE_SHARE // len(cpus)) // MIB * MIB
    if not each:
        raise VmplaceError("too little free memory to measure with", hint="calibrate before guests start")
    read_bytes, spent_ns = (np.zeros((len(cpus), len(mem_nids)), np.uint64) for _ in range(2))
    at, of = np.array([cpu for cpu, _ in cpus], np.int32), np.array(mem_nids, np.int32)
    try:
        native.measure_streams(at, of, each, duration_ms, read_bytes, spent_ns)
    except OSError as err:
        raise VmplaceError(
            f"cannot read nodes {mem_nids} from CPUs {at.tolist()}: {err.strerror}",
            hint="run it as root, outside of cpusets, with free memory on every node",
        ) from err
    rates = np.where(spent_ns > 0, read_bytes * 1e9 / np.maximum(spent_ns, 1), 0.0)
    nid_of = np.array([nid for _, nid in cpus])
    measured = {
        (cpu_nid, mem_nid): int(rates[nid_of == cpu_nid, column].sum())
        for cpu_nid in workers
        for column, mem_nid in enumerate(mem_nids)
    }
    for (cpu_nid, mem_nid), rate in measured.items():
        if not rate:
            raise VmplaceError(
                f"CPUs of node {cpu_nid} read nothing of node {mem_nid} within {duration_ms} ms",
                hint="measure for longer, or on a less busy host: --duration-ms",
            )
    return measured


def _paths(rates: Mapping[tuple[int, int], int]) -> tuple[NodePath, ...]:
    return tuple(NodePath(cpu_nid, mem_nid, rate) for (cpu_nid, mem_nid), rate in rates.items())


def _worker_set(host: HostTopology, nids: tuple[int, ...], rates: Mapping[tuple[int, int], int]) -> WorkerSet:
    weights = bandwidth_weights(replace(host, worker_bandwidths={nids: rates}), nids)
    return WorkerSet(nids, _paths(rates), {nid: round(weight, 6) for nid, weight in weights.items()})


def read_calibrated_host(path: Path = DEFAULT_PATH) -> tuple[HostTopology, str | None]:
    """Return the host with what was measured on it, and why that cannot be used, if it cannot."""
    host = read_host()
    try:
        return calibrated(host, read_calibration(read_machine_identity(host), path)), None
    except VmplaceError as err:
        return host, f"{err}; firmware and distances stand in until then: {err.hint}"
