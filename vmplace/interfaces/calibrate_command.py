"""``vmplace calibrate``: measure bandwidth and latency between the nodes, and keep them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from vmplace.interfaces.options import NothingError, examples, json_option, print_json
from vmplace.interfaces.output_file import opened_output, with_folder
from vmplace.model.host_memory import host_memory
from vmplace.topology.calibration import (
    DEFAULT_PATH,
    LEAST_CPU_SHARE,
    Calibration,
    NodePath,
    calibrated,
    encoded,
    read_calibration,
    read_machine_identity,
)
from vmplace.topology.calibration_runs import Report, measured
from vmplace.topology.host import HostTopology, NodeLink
from vmplace.topology.sysfs import read_host

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = "vmplace calibrate\nvmplace calibrate --show --json | jq '.worker_sets[].canonical_weights'"
UNMEASURED = "measure first, while no guest needs the CPUs: vmplace calibrate"
GIGABYTE = 1e9
NO_LATENCIES = (
    "latencies were not measured: that needs free memory on each node, several times the size of its caches; "
    "plans take those of firmware's distances"
)
DISTURBED = (
    "warning: others took up to {:.0%} of the CPUs, so plans use bandwidths and latencies alone; measure "
    "again while the host idles"
)


class CalibrationReport(Calibration, frozen=True, kw_only=True):
    """What was measured, and what plans make of it: how accesses wait (None: not known), links they share."""

    queue: float | None
    links: tuple[NodeLink, ...]


@click.command(epilog=examples(EXAMPLES))
@json_option
@click.option("--show", is_flag=True, help="Measure nothing; show what was measured.")
@click.option("--duration-ms", type=click.IntRange(20, 10_000), default=300, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help=f"[default: {DEFAULT_PATH.name} in the agent's state_dir]"
)
def calibrate(as_json: bool, show: bool, duration_ms: int, out: Path | None) -> None:
    """Measure how fast the CPUs of each node read each node's memory, alone and all at once.

    This takes all CPUs, for some minutes on hosts of eight nodes: run it while no guest needs them.  From
    then on, plans use the measured figures in place of the firmware's: bandwidths, latencies, how long
    accesses wait at a busy controller, and which paths share a link.  Each sensible set of worker nodes gets
    its canonical weights.
    """
    host, path = read_host(), out or _agents_file()
    if show:
        calibration = _kept(host, path)
    else:
        # The folder of the agent's state may not be there yet; one that somebody names may be misspelt.
        calibration = _measured(host, path if out else with_folder(path), duration_ms)
    if calibration.cpu_share < LEAST_CPU_SHARE:
        click.echo(DISTURBED.format(1 - calibration.cpu_share), err=True)
    known = calibrated(host, calibration)
    if as_json:
        print_json(CalibrationReport(**structs.asdict(calibration), queue=known.queue, links=known.links))
    else:
        _print(host, calibration, path)


def _agents_file() -> Path:
    """Return where an agent on this host reads what was measured."""
    from vmplace.agent.config import read_config

    return Path(read_config().config.state_dir) / DEFAULT_PATH.name


def _kept(host: HostTopology, path: Path) -> Calibration:
    calibration = read_calibration(read_machine_identity(host), path)
    if calibration is None:
        raise NothingError(f"nothing was measured yet: there is no {path}", hint=UNMEASURED)
    return calibration


def _measured(host: HostTopology, path: Path, duration_ms: int) -> Calibration:
    """Measure, and keep it in a file that was opened before, as this takes all CPUs."""
    machine, cpus = read_machine_identity(host), frozenset(os.sched_getaffinity(0))
    with opened_output(path, lasting=True) as file:
        with _progress() as report:
            calibration = measured(host, machine, duration_ms=duration_ms, cpus=cpus, report=report)
        file.write(encoded(calibration))
    return calibration


@contextmanager
def _progress() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("calibrating", total=None)

        def report(what: str, done: int, todo: int) -> None:
            progress.update(task, description=what, completed=done, total=todo)

        yield report


def _print(host: HostTopology, calibration: Calibration, path: Path) -> None:
    from rich.console import Console

    console = Console()
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(calibration.measured_at))
    console.print(f"{calibration.machine.cpu_model}, measured {when}, kept in {path}", highlight=False)
    nids = host.memory_nids
    cpu_nids = sorted({path.cpu_nid for path in calibration.paths})
    rates = _table("GB/s, one node alone", "CPUs of", nids)
    for cpu_nid in cpu_nids:
        rates.add_row(f"node {cpu_nid}", *_cells(calibration.paths, cpu_nid, nids))
    console.print(rates)
    if any(path.latency_ns for path in calibration.paths):
        latencies = _table("ns for a line, idle", "CPUs of", nids)
        for cpu_nid in cpu_nids:
            latencies.add_row(f"node {cpu_nid}", *_latency_cells(calibration.paths, cpu_nid, nids))
        console.print(latencies)
    else:
        console.print(NO_LATENCIES, highlight=False)
    weights = _table("canonical weights, all workers at once", "workers", nids)
    for one in calibration.worker_sets:
        cells = [f"{one.canonical_weights.get(nid, 0.0):.3f}" for nid in nids]
        weights.add_row(" ".join(map(str, one.worker_nids)), *cells)
    console.print(weights)
    for line in _findings(calibrated(host, calibration)):
        console.print(line, highlight=False)


def _findings(host: HostTopology) -> Iterator[str]:
    """Yield what follows for plans, in words."""
    system = host_memory(host)
    if host.queue is None or system is None:
        yield "how long accesses wait at a busy controller: not known; plans take an older server's waits"
    else:
        waits = (host.queue / system.controller[system.controller > 0]).tolist()
        yield f"an access waits {min(waits):.0f} to {max(waits):.0f} ns at a controller that is half used"
    links = ", ".join(f"{a}-{b}" for a, b in (link.nids for link in host.links))
    yield f"farther nodes share these links: {links}" if links else "no links that farther nodes share"


def _table(title: str, first: str, nids: tuple[int, ...]) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for nid in nids:
        table.add_column(f"node {nid}", justify="right")
    return table


def _cells(paths: tuple[NodePath, ...], cpu_nid: int, nids: tuple[int, ...]) -> list[str]:
    known = {path.mem_nid: path.bytes_per_s for path in paths if path.cpu_nid == cpu_nid}
    return [f"{known[nid] / GIGABYTE:.1f}" if nid in known else "?" for nid in nids]


def _latency_cells(paths: tuple[NodePath, ...], cpu_nid: int, nids: tuple[int, ...]) -> list[str]:
    known = {path.mem_nid: path.latency_ns for path in paths if path.cpu_nid == cpu_nid and path.latency_ns}
    return [f"{known[nid]:.0f}" if nid in known else "?" for nid in nids]
