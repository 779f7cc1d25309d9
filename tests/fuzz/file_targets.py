"""Which files do simulations, benches and the lab read: traces, hosts, calibrations, results."""

import io
import json
import struct
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from lab import report_scenario
from lab.scenario import parse_scenario
from lab.topology import parse_topology, qemu_arguments
from tests.fuzz.target import DATA, SCRATCH, Target, captured, just, text_of
from tests.unit.lab.scenario_figures import manager
from tests.unit.simulate.small_trace import private_pages
from tests.unit.topology.test_calibration import FOUR, MACHINE, calibration
from vmplace.interfaces.report_policy import _summary, parse_policy_table
from vmplace.simulate.guest_option import guest_spec
from vmplace.simulate.host_file import SimulatedHost, parse_host
from vmplace.simulate.trace import WANTED, Trace, parse_trace, read_trace
from vmplace.topology.bandwidth import bandwidth_weights
from vmplace.topology.calibration import calibrated, read_calibration

TOPOLOGIES = DATA.parents[1] / "lab/topologies"
SCENARIOS = DATA.parents[1] / "lab/scenarios"


@cache
def host() -> SimulatedHost:
    """Return a host of four nodes."""
    return parse_host((TOPOLOGIES / "n4-full.toml").read_text(), name="x")


@cache
def trace() -> Trace:
    """Return a small trace."""
    return parse_trace(private_pages(windows=2, npages=8), name="t")


def npz(data: bytes) -> None:
    """Read a trace's file."""
    path = SCRATCH / "t.npz"
    path.write_bytes(data)
    read_trace(path)


def arrays(data: bytes) -> None:
    """Read a trace whose archive is sound: its members in the order of their names, each with a length."""
    out, at = io.BytesIO(), 0
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(WANTED):
            (size,) = struct.unpack_from("<H", data.ljust(at + 2, b"\0"), at)
            archive.writestr(f"{name}.npy", data[at + 2 : at + 2 + size])
            at += 2 + size
    npz(out.getvalue())


def guest_option(data: bytes) -> None:
    """Take a guest's options on a host."""
    options = dict(part.partition("=")[::2] for part in text_of(data).split(","))
    guest_spec("a", trace(), options, host())


def bandwidths(data: bytes) -> None:
    """Use a calibration."""
    path = SCRATCH / "bandwidth.json"
    path.write_bytes(data)
    bandwidth_weights(calibrated(FOUR, read_calibration(MACHINE, path)), (0, 1))


def topology(data: bytes) -> None:
    """Make QEMU's arguments of a topology."""
    qemu_arguments(parse_topology(text_of(data), name="x"), "/x")


def traced() -> list[bytes]:
    """Return a trace's file."""
    out = io.BytesIO()
    np.savez(out, **private_pages(windows=2, npages=8))
    return [out.getvalue()]


def traced_arrays() -> list[bytes]:
    """Return a trace's members, as ``arrays`` takes them."""
    with zipfile.ZipFile(io.BytesIO(traced()[0])) as archive:
        members = [archive.read(f"{name}.npy") for name in sorted(WANTED)]
    return [b"".join(struct.pack("<H", len(one)) + one for one in members)]


def policy_rows() -> list[bytes]:
    """Return a table of policies."""
    row = {"host": "h", "mix": "m", "policy": "p", "source": "s", "run_time_s": 1.0, "oracle_share": 0.5}
    return [json.dumps({"rows": [row, {**row, "policy": "none", "worst_guest_slowdown": 0.1}]}).encode()]


def scenario_tables(data: bytes) -> None:
    """Make the tables and the pictures' figures of a scenario's result."""
    result = report_scenario.parse_scenario_result(data, Path("x"))
    report_scenario._guest_table(result).of_known()
    report_scenario._manager_table(result).of_known()
    for picture in report_scenario._pictures(result):
        assert np.isfinite(picture.largest)


def scenario_figures() -> list[bytes]:
    """Return a result of two managers."""
    managers = {"none": manager(), "vmplace": manager(intact=False)}
    result = {"scenario": "s", "topology": "t", "nids": (0, 1), "managers": managers, "truth": {"a": "b"}}
    return [msgspec.json.encode(result)]


FILE_TARGETS: Mapping[str, Target] = {
    "trace": Target(npz, traced),
    "trace_arrays": Target(arrays, traced_arrays),
    "host_file": Target(
        lambda data: parse_host(text_of(data), name="x"), captured(*sorted(TOPOLOGIES.glob("n4*.toml")))
    ),
    "guest_option": Target(guest_option, just(b"vcpus=4,nodes=0+1,first_touch=0,priority=protected,mlp=2.5")),
    "calibration": Target(bandwidths, lambda: [msgspec.json.encode(calibration())]),
    "topology": Target(topology, captured(*sorted(TOPOLOGIES.glob("*.toml"))[:4])),
    "scenario": Target(
        lambda data: parse_scenario(text_of(data), source="x"),
        captured(*sorted(SCENARIOS.glob("*.toml"))[:3]),
    ),
    "report_policy": Target(
        lambda data: _summary(list(parse_policy_table(data, Path("x")).rows)), policy_rows
    ),
    "report_scenario": Target(scenario_tables, scenario_figures),
}
