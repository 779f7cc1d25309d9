"""What was measured of this host's memory (calibration_runs.py), where is it kept, and what follows from it?

Kept as JSON together with what identifies the machine, so that a copied file or changed hardware shows.
Files of before December 2026 hold no latencies; firmware's distances stand in for these.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec

from vmplace.errors import OutsideError, VmplaceError, cure_of_reading
from vmplace.outside import MOST_ID, lines, parse_json, read_bytes, read_text
from vmplace.topology.host import HostTopology
from vmplace.topology.loaded_latency import LEAST_NS, MOST_NS, Controller, LoadedPoint, fitted, host_queue
from vmplace.topology.shared_links import Contest, shared_links
from vmplace.topology.sysfs import read_host

DEFAULT_PATH = Path("/var/lib/vmplace/bandwidth.json")
SCHEMA_VERSION = 1
GIB = 1 << 30

Id = Annotated[int, msgspec.Meta(ge=0, le=MOST_ID)]
BytesPerS = Annotated[int, msgspec.Meta(ge=1, le=1 << 50)]
Ns = Annotated[float, msgspec.Meta(ge=LEAST_NS, le=MOST_NS)]
MOST_LOADED, MOST_AT_ONCE = 1 << 12, 1 << 10
"""64 nodes of which each has some tens of loads, and more contests than are ever tried (shared_links.py)."""
LEAST_CPU_SHARE = 0.9
"""Where others had more of the CPUs, nothing is made of how figures differ."""
MOST_BYTES = 64 << 20
"""Of the file: 64 nodes make some 4,000 sets of 4,000 paths at the most."""


class NodePath(msgspec.Struct, frozen=True, omit_defaults=True):
    """What CPUs on one node read from the memory of one node.

    ``latency_ns``: what a line takes while nobody else reads, None where that was not measured.
    """

    cpu_nid: Id
    mem_nid: Id
    bytes_per_s: BytesPerS
    latency_ns: Ns | None = None


class LoadedLatency(msgspec.Struct, frozen=True):
    """What a line of a node's own memory took while ``streams`` of its CPUs read ``bytes_per_s`` of it."""

    nid: Id
    streams: Annotated[int, msgspec.Meta(ge=1, le=MOST_ID)]
    bytes_per_s: BytesPerS
    latency_ns: Ns


class TwoPaths(msgspec.Struct, frozen=True):
    """What two paths gave that were read at once (shared_links.py)."""

    one: NodePath
    other: NodePath


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
    """All that was measured; ``measured_at`` in seconds since 1970.

    ``cpu_share``: the share of its time for which each measurement had its CPUs; others had the rest.
    """

    machine: MachineIdentity
    measured_at: float
    paths: tuple[NodePath, ...]
    worker_sets: tuple[WorkerSet, ...]
    loaded: Annotated[tuple[LoadedLatency, ...], msgspec.Meta(max_length=MOST_LOADED)] = ()
    at_once: Annotated[tuple[TwoPaths, ...], msgspec.Meta(max_length=MOST_AT_ONCE)] = ()
    cpu_share: Annotated[float, msgspec.Meta(ge=0, le=2)] = 1.0
    schema_version: int = SCHEMA_VERSION


def calibrated(host: HostTopology, calibration: Calibration | None) -> HostTopology:
    """Return the host with measured bandwidths and latencies in place of firmware's, and what they show."""
    if calibration is None:
        return host
    known = {_pair(path): path.bytes_per_s for path in calibration.paths}
    idle_ns = {_pair(path): path.latency_ns for path in calibration.paths if path.latency_ns}
    together = {
        one.worker_nids: {_pair(path): path.bytes_per_s for path in one.paths}
        for one in calibration.worker_sets
    }
    host = replace(host, bandwidths=known, idle_latencies=idle_ns, worker_bandwidths=together)
    return host if calibration.cpu_share < LEAST_CPU_SHARE else _with_findings(host, calibration)


def _with_findings(host: HostTopology, calibration: Calibration) -> HostTopology:
    """Return the host with what its figures show together."""
    found = controllers(calibration, host.idle_latencies)
    got = {
        Contest(_pair(two.one), _pair(two.other)): (two.one.bytes_per_s, two.other.bytes_per_s)
        for two in calibration.at_once
    }
    nodes = [node.nid for node in host.nodes if node.cpus and node.memory_bytes]
    host = replace(host, links=shared_links(host, got), queue=host_queue(tuple(found.values()), len(nodes)))
    if not {*nodes} <= found.keys():
        return host
    # Controllers serve a little more than CPUs get of them, which wait for each other.
    served = {(nid, nid): round(one.bytes_per_s) for nid, one in found.items()}
    return replace(host, bandwidths={**host.bandwidths, **served})


def controllers(calibration: Calibration, idle_ns: Mapping[tuple[int, int], float]) -> dict[int, Controller]:
    """Return what is known of each node's controller, by nid."""
    found = {}
    for nid in dict.fromkeys(one.nid for one in calibration.loaded):
        idle = idle_ns.get((nid, nid))
        mine = [one for one in calibration.loaded if one.nid == nid]
        if idle is not None:
            points = [LoadedPoint(one.bytes_per_s, one.latency_ns - idle) for one in mine]
            if (controller := fitted(points, idle)) is not None:
                found[nid] = controller
    return found


def _pair(path: NodePath) -> tuple[int, int]:
    return path.cpu_nid, path.mem_nid


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
    paths = [*calibration.paths, *(path for one in calibration.worker_sets for path in one.paths)]
    paths += [path for two in calibration.at_once for path in (two.one, two.other)]
    named = {nid for one in paths for nid in (one.cpu_nid, one.mem_nid)}
    if not named | {one.nid for one in calibration.loaded} <= known:
        raise VmplaceError(f"{path} tells of nodes that this machine does not have", hint=again)
    return calibration


def read_calibrated_host(path: Path = DEFAULT_PATH) -> tuple[HostTopology, str | None]:
    """Return the host with what was measured on it, and why that cannot be used, if it cannot."""
    host = read_host()
    try:
        return calibrated(host, read_calibration(read_machine_identity(host), path)), None
    except VmplaceError as err:
        return host, f"{err}; firmware and distances stand in until then: {err.hint}"
