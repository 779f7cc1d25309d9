"""``vmplace simulate``: recorded programs as guests of a modelled host, under one policy."""

from pathlib import Path
from typing import Any

import click
import msgspec

from vmplace.interfaces.options import examples
from vmplace.simulate.registry import POLICIES

FILE = click.Path(path_type=Path, dir_okay=False)
EXAMPLE = "vmplace simulate --host HOST.toml --guest db=streamcluster.npz --policy vmplace --json out.json"


@click.command("simulate", epilog=examples(EXAMPLE))
@click.option("--host", "host_path", type=FILE, required=True, help="Host file (docs/simulate.md).")
@click.option("--guest", "guests", multiple=True, required=True, help="NAME=TRACE.npz[,vcpus=…,nodes=0+1,…].")
@click.option("--policy", type=click.Choice(list(POLICIES)), default="vmplace", show_default=True)
@click.option("--source", default="full", show_default=True, help="What is seen: full, ad, ibs, ad+hints, …")
@click.option("--windows", type=click.IntRange(min=1), help="Replay only the first windows.  [default: all]")
@click.option(
    "--move-ns", type=click.FloatRange(min=0), default=2000.0, show_default=True, help="Of a vCPU, per page."
)
@click.option("--json", "json_path", type=FILE, help="Write the figures to this file.")
def simulate_command(  # noqa: PLR0913  (options)
    host_path: Path,
    guests: tuple[str, ...],
    policy: str,
    source: str,
    windows: int | None,
    move_ns: float,
    json_path: Path | None,
) -> None:
    """Replay traces on a modelled host and print what POLICY makes of it, beside nothing and the oracle.

    Times are modelled, not measured (docs/simulate.md).  run_time_s is the mean over the guests.
    """
    row = _simulated(host_path, guests, policy, source, windows, move_ns)
    if json_path:
        plain = msgspec.json.encode(msgspec.to_builtins(row))
        json_path.write_bytes(msgspec.json.format(plain, indent=2) + b"\n")
    for key, value in row.items():
        if key != "guests":
            click.echo(f"{key:22} {_told(value)}")
    for name, guest in row["guests"].items():
        moved = f"moved {guest.moved_bytes >> 20} MiB, replicated {guest.replicated_bytes >> 20} MiB"
        click.echo(f"guest {name:16} {guest.run_time_s:.4f} s, {moved}, {guest.collapsed_pages} collapsed")


def _simulated(  # noqa: PLR0913  (options)
    host_path: Path, guests: tuple[str, ...], policy: str, source: str, windows: int | None, move_ns: float
) -> dict[str, Any]:
    from vmplace.simulate.guest_option import read_guests
    from vmplace.simulate.host_file import read_host
    from vmplace.simulate.placement_costs import PlacementCosts
    from vmplace.simulate.result import row
    from vmplace.simulate.run import ALL_WINDOWS, simulate
    from vmplace.simulate.source_views import source_named

    host, shown = read_host(host_path), source_named(source)
    specs = read_guests(guests, host)
    results = {
        name: simulate(
            host, specs, POLICIES[name], shown, windows or ALL_WINDOWS, PlacementCosts(move_ns=move_ns)
        )
        for name in dict.fromkeys([policy, "none", "oracle"])
    }
    mix = "+".join(f"{spec.name}={spec.trace.name}" for spec in specs)
    names = {"host": host.name, "mix": mix, "policy": policy, "source": source}
    return row(names, results[policy], results["none"], results["oracle"])


def _told(value: Any) -> str:
    if value is None:
        return "no answer"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
