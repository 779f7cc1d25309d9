"""``vmplace fleet-model``: what the Watcher strategy would do for a fleet, in a model of it."""

from pathlib import Path

import click

from vmplace.fleet.arrivals import read_arrivals, write_arrivals
from vmplace.fleet.fleet_model import FleetResult, FleetSetup, arrivals, simulated_fleet
from vmplace.fleet.loop_table import shipped_table
from vmplace.fleet.rebalance import MOST, TARGET, THRESHOLD, Limits
from vmplace.fleet.views import FleetModelled
from vmplace.interfaces.options import FiniteRange, examples, json_option, print_json

SHARE = FiniteRange(min=0.01, max=1.0)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    "fleet-model", epilog=examples("vmplace fleet-model --hosts 200 --packs --threshold 0.7 --json")
)
@click.option("--hosts", type=click.IntRange(2, 2000), default=100, show_default=True)
@click.option("--days", type=FiniteRange(min=0.1, max=30), default=2.0, show_default=True)
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
@click.option("--arrivals", "replayed", type=FILE, help="Recorded arrivals, a CSV file.  [default: seeded]")
@click.option("--save-arrivals", "saved", type=FILE, help="Write the arrivals to a CSV file.")
@json_option
def fleet_model(  # noqa: PLR0913 - an option each
    hosts: int,
    days: float,
    fill: float,
    packs: bool,
    seed: int,
    threshold: float,
    target: float,
    migrations: int,
    replayed: Path | None,
    saved: Path | None,
    as_json: bool,
) -> None:
    """Model a fleet whose guests come and go, without and with the strategy for Watcher.

    All figures are modelled.  Hosts are looked up in a table that was fitted to the agent's loop in virtual
    time (docs/clouds/fleet.md).  Pressure is the share of a node's bandwidth that guests take, on the
    host's fullest node.  Figures are over hosts and audits in the second half of the time.
    """
    setup = FleetSetup(hosts=hosts, days=days, fill=fill, packs=packs, seed=seed)
    guests = read_arrivals(replayed, shipped_table()) if replayed else arrivals(setup)
    if saved:
        write_arrivals(saved, guests)
    limits = Limits(threshold, target, migrations)
    reported = FleetModelled(
        setup,
        nobody=simulated_fleet(setup, guests, rebalances=False),
        watcher=simulated_fleet(setup, guests, rebalances=True, limits=limits),
    )
    if as_json:
        print_json(reported)
        return
    click.echo(f"{'nobody':8} {_line(reported.nobody)}")
    click.echo(f"{'watcher':8} {_line(reported.watcher)}")


def _line(result: FleetResult) -> str:
    return (
        f"pressure p50 {result.pressure_p50:.2f}, p95 {result.pressure_p95:.2f}, "
        f"hosts pressed {result.pressed_share:.1%} of the time; {result.migrations} migrations, "
        f"{result.migrated_share:.1%} of {result.guests} guests, {result.refused} refused; "
        f"p95 at the least {result.least_p95:.2f}"
    )
