"""``vmplace fleet-model``: what the Watcher strategy would do for a fleet, in a model of it."""

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from vmplace.errors import VmplaceError
from vmplace.fleet.arrivals import Arrival, read_arrivals, write_arrivals
from vmplace.fleet.fleet_fit import FleetFlavour, OverTime, SpareCapacity, over_time, room
from vmplace.fleet.fleet_model import Fleet, FleetResult, FleetSetup, arrivals, simulated_fleet
from vmplace.fleet.loop_table import shipped_table
from vmplace.fleet.pressure_model import PressureModel, TableModel
from vmplace.fleet.rebalance import MOST, TARGET, THRESHOLD, Limits
from vmplace.fleet.views import FleetFit, FleetModelled
from vmplace.interfaces.options import FiniteRange, examples, json_option, print_json

DAYS, MOST_DAYS = 2.0, 30.0
SHARE = FiniteRange(min=0.01, max=1.0)
FILE = click.Path(path_type=Path, dir_okay=False)
EXAMPLES = """\
vmplace fleet-model --hosts 200 --packs --threshold 0.7 --json
vmplace fleet-model --hosts 200 --packs --fit 4:8192:0.3
vmplace fleet-model --hosts 100 --packs --loop traces --loop-runs runs.jsonl"""


def parsed_flavour(_ctx: click.Context, _param: click.Parameter, value: str | None) -> FleetFlavour | None:
    """Parse ``VCPUS:MIB[:PRESSURE]``; fails with an example."""
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,9})(?::([0-9]{1,9}(?:\.[0-9]{1,9})?))?", value)
    if not found or not int(found[1]) or not int(found[2]) or float(found[3] or 0) > 1:
        form = "VCPUS:MIB[:PRESSURE], such as 4:8192:0.3; PRESSURE is from 0 to 1"
        raise click.BadParameter(f"{value!r} is no size: write {form}")
    return FleetFlavour(int(found[1]), int(found[2]), float(found[3] or 0))


@click.command("fleet-model", epilog=examples(EXAMPLES))
@click.option("--hosts", type=click.IntRange(2, 2000), default=100, show_default=True)
@click.option(
    "--days",
    type=FiniteRange(min=0.1, max=MOST_DAYS),
    help="[default: 2; with --arrivals until the last of them]",
)
@click.option(
    "--fill",
    type=FiniteRange(min=0.05, max=0.95),
    default=0.7,
    show_default=True,
    help="vCPUs sold, a share.",
)
@click.option("--packs", is_flag=True, help="Nova fills hosts up one after the other.  [default: it spreads]")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@click.option(
    "--threshold",
    type=SHARE,
    default=THRESHOLD,
    show_default=True,
    help="Relieve hosts from this pressure on.",
)
@click.option(
    "--target", type=SHARE, default=TARGET, show_default=True, help="No migration lifts a host above this."
)
@click.option(
    "--migrations", type=click.IntRange(1, 1000), default=MOST, show_default=True, help="Most in one audit."
)
@click.option(
    "--fit",
    "flavour",
    callback=parsed_flavour,
    metavar="VCPUS:MIB[:PRESSURE]",
    help="Count how many further guests of this size the fleet takes; PRESSURE is from 0, the default, to 1.",
)
@click.option(
    "--loop",
    "traces",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Run the agent's loop on each host, with the traces PROGRAM.npz of this folder.  Takes hours.",
)
@click.option("--loop-runs", "runs", type=FILE, help="Keep the loop's runs in this file, to go on from.")
@click.option("--arrivals", "replayed", type=FILE, help="Recorded arrivals, a CSV file.  [default: seeded]")
@click.option("--save-arrivals", "saved", type=FILE, help="Write the arrivals to a CSV file.")
@json_option
def fleet_model(  # noqa: PLR0913 - an option each
    hosts: int,
    days: float | None,
    fill: float,
    packs: bool,
    seed: int,
    threshold: float,
    target: float,
    migrations: int,
    flavour: FleetFlavour | None,
    traces: Path | None,
    runs: Path | None,
    replayed: Path | None,
    saved: Path | None,
    as_json: bool,
) -> None:
    """Model a fleet whose guests come and go, without and with the strategy for Watcher.

    All figures are modelled.  Hosts are looked up in a table that was fitted to the agent's loop in virtual
    time (docs/clouds/fleet.md); --loop runs the loop itself.  Pressure is the share of a node's bandwidth
    that guests take, on the host's fullest node.  Figures are over hosts and audits in the second half of
    the time.

    --fit counts further guests that find their vCPUs and memory on one node, the hosts that take one, and
    how many guests can run on nodes that stay below --threshold.  The modelled Nova asks for less: vCPUs on
    one node, and memory of the host as a whole.  PRESSURE is the share of a node's bandwidth that such a
    guest takes alone (default 0).  Measure it while its node has nothing else to do: `vmplace status --json`
    has it as pressure_by_node.  Each count is given at the end and over time: in one audit of twenty it is
    p5 or less.
    """
    recorded = read_arrivals(replayed, shipped_table()) if replayed else None
    days = days or (DAYS if recorded is None else days_of(recorded))
    setup = FleetSetup(hosts=hosts, days=days, fill=fill, packs=packs, seed=seed)
    guests = arrivals(setup) if recorded is None else recorded
    if saved:
        write_arrivals(saved, guests)
    with _model(traces, runs, guests, flavour) as model:
        if not guests:
            raise VmplaceError("no guest arrives", hint="take more --days or --hosts, or other --arrivals")
        reported = modelled(setup, guests, Limits(threshold, target, migrations), flavour, model)
    if as_json:
        print_json(reported)
        return
    click.echo(f"{'nobody':8} {_line(reported.nobody)}")
    click.echo(f"{'watcher':8} {_line(reported.watcher)}")
    if reported.fit:
        print_fit(reported.fit)


def days_of(recorded: Sequence[Arrival]) -> float:
    """Return for how long to model recorded arrivals: until the last, rounded up to a tenth of a day.

    Raises VmplaceError for more than is modelled.
    """
    last_s = max((one.from_s for one in recorded), default=0.0)
    days = max(math.ceil(last_s / 8640) / 10, 0.1)
    if days > MOST_DAYS:
        hint = f"at most {MOST_DAYS:g} days are modelled: give --days, or arrivals that begin at 0"
        raise VmplaceError(f"the last guest arrives after {days:g} days", hint=hint)
    return days


@contextmanager
def _model(
    traces: Path | None, runs: Path | None, guests: Sequence[Arrival], flavour: FleetFlavour | None
) -> Iterator[PressureModel]:
    """Give the table, or the loop with its processes."""
    if traces is None and runs is None:
        yield TableModel()
        return
    if traces is None or runs is None or flavour is not None:
        raise click.UsageError("--loop needs --loop-runs FILE, and goes without --fit")
    if missing := {one.program for one in guests if not (traces / f"{one.program}.npz").is_file()}:
        hint = "record them, or name a folder that has them"
        raise VmplaceError(f"{traces} has no trace of {', '.join(sorted(missing))}", hint=hint)
    from vmplace.fleet.executors import local_workers
    from vmplace.fleet.kept_runs import KeptRuns
    from vmplace.fleet.loop_host import SPAN_NS
    from vmplace.fleet.loop_model import LoopModel, inputs_digest

    workers = local_workers(None).open
    with (
        KeptRuns(runs, SPAN_NS, inputs_digest(traces)) as kept,
        workers() as pool,
        _progress() as tell,
    ):
        yield LoopModel(traces, kept, pool, tell)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Give what tells a terminal how many runs are done; the line ends with it."""
    is_open = False

    def tell(done: int, needed: int) -> None:
        nonlocal is_open
        if sys.stderr.isatty():
            click.echo(f"\r{done} of {needed} runs of the loop so far", nl=False, err=True)
            is_open = True

    try:
        yield tell
    finally:
        if is_open:
            click.echo(err=True)


def modelled(
    setup: FleetSetup,
    guests: Sequence[Arrival],
    limits: Limits,
    flavour: FleetFlavour | None,
    model: PressureModel,
) -> FleetModelled:
    """Return the figures of both runs, and the room for a flavour in each."""
    rooms: dict[bool, list[SpareCapacity]] = {False: [], True: []}
    table = shipped_table()

    def run(*, rebalances: bool) -> FleetResult:
        def look(fleet: Fleet) -> None:
            if flavour:
                rooms[rebalances].append(room(fleet.hosts.values(), table, flavour, limits.threshold))

        return simulated_fleet(Fleet(setup, guests, model), rebalances=rebalances, limits=limits, look=look)

    nobody, watcher = run(rebalances=False), run(rebalances=True)
    if flavour is None:
        return FleetModelled(setup, nobody, watcher)
    fit = FleetFit(flavour, limits.threshold, over_time(rooms[False]), over_time(rooms[True]))
    return FleetModelled(setup, nobody, watcher, fit)


def _line(result: FleetResult) -> str:
    return (
        f"pressure p50 {result.pressure_p50:.2f}, p95 {result.pressure_p95:.2f}, "
        f"hosts pressed {result.pressed_share:.1%} of the time; {result.migrations} migrations, "
        f"{result.migrated_share:.1%} of {result.guests} guests, {result.refused} refused; "
        f"p95 at the least {result.least_p95:.2f}"
    )


def print_fit(fit: FleetFit) -> None:
    """Print the room with nobody and with the strategy, a line for each count."""
    size = fit.flavour
    click.echo(f"\n{f'further {size.vcpus}:{size.memory_mib}:{size.pressure:g}':30} at the end  median  p5")
    for who, found in (("nobody", fit.nobody), ("watcher", fit.watcher)):
        click.echo(_fit_line(f"{who:8} guests that fit", found.guests))
        click.echo(_fit_line(f"{'':8} hosts that take one", found.hosts))
        click.echo(_fit_line(f"{'':8} guests below {fit.threshold:g}", found.below_threshold))


def _fit_line(name: str, found: OverTime) -> str:
    return f"{name:30} {found.end:10} {found.p50:7} {found.p5:3}"
