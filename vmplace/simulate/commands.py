"""``vmplace simulate``: recorded programs as guests of a modelled host, under one policy."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from vmplace.errors import VmplaceError, WrongUsageError
from vmplace.interfaces.options import FiniteRange, examples
from vmplace.interfaces.output_file import maybe_output
from vmplace.simulate.registry import POLICIES

if TYPE_CHECKING:
    from vmplace.simulate.result import SimulationResult

MOST_RUN_TIME_S = 100.0
"""More is refused; the traces of real programs take one or two."""
FILE = click.Path(path_type=Path, dir_okay=False)
EXAMPLE = "vmplace simulate --host two-node --guest db=streamcluster.npz --policy vmplace --json out.json"


@click.command("simulate", epilog=examples(EXAMPLE))
@click.option(
    "--host", "host_name", required=True, help="Host file (docs/simulate.md), or a name, such as two-node."
)
@click.option("--guest", "guests", multiple=True, required=True, help="NAME=TRACE.npz[,vcpus=…,nodes=0+1,…].")
@click.option("--policy", type=click.Choice(list(POLICIES)), default="vmplace", show_default=True)
@click.option(
    "--source", default="full", show_default=True, help="What the policy sees: full, ad, ibs, ad+hints, …"
)
@click.option("--windows", type=click.IntRange(min=1), help="Replay only the first windows.  [default: all]")
@click.option(
    "--move-ns",
    type=FiniteRange(min=0, max=1e9),
    default=2000.0,
    show_default=True,
    help="What moving a page costs, in ns of one vCPU.",
)
@click.option("--json", "json_path", type=FILE, help="Write the figures to this file.")
def simulate_command(  # noqa: PLR0913  (options)
    host_name: str,
    guests: tuple[str, ...],
    policy: str,
    source: str,
    windows: int | None,
    move_ns: float,
    json_path: Path | None,
) -> None:
    """Replay traces on a modelled host: run times under POLICY, without moves, and under an oracle.

    Times are modelled, not measured (docs/simulate.md).  run_time_s is the mean over the guests.
    """
    from vmplace.simulate.host_names import host_path

    path = host_path(host_name)
    _check_output(json_path, path, guests)
    with maybe_output(json_path) as output:
        row = _simulated(path, guests, policy, source, windows, move_ns)
        if output is not None:
            plain = msgspec.json.encode(msgspec.to_builtins(row))
            output.write(msgspec.json.format(plain, indent=2) + b"\n")
    for key, value in row.items():
        if key != "guests":
            click.echo(f"{key:22} {_shown(value)}")
    for name, guest in row["guests"].items():
        moved = f"moved {guest.moved_bytes >> 20} MiB, replicated {guest.replicated_bytes >> 20} MiB"
        click.echo(f"guest {name:16} {guest.run_time_s:.4f} s, {moved}, {guest.collapsed_pages} collapsed")


def _simulated(  # noqa: PLR0913  (options)
    path: Path, guests: tuple[str, ...], policy: str, source: str, windows: int | None, move_ns: float
) -> dict[str, Any]:
    from vmplace.simulate.guest_option import read_guests
    from vmplace.simulate.host_file import read_host
    from vmplace.simulate.placement_costs import PlacementCosts
    from vmplace.simulate.result import SimulationResult, row
    from vmplace.simulate.run import ALL_WINDOWS, simulate
    from vmplace.simulate.source_views import source_named

    host, shown = read_host(path), source_named(source)
    specs = read_guests(guests, host)
    costs, results = PlacementCosts(move_ns=move_ns), dict[str, SimulationResult]()
    # Without a policy first: it is soon over, and tells how long the others would take.
    names = list(dict.fromkeys(["none", policy, "oracle"]))
    for number, name in enumerate(names, 1):
        if _is_watched():
            click.echo(f"{number} of {len(names)}: policy {name} …", err=True)
        results[name] = simulate(host, specs, POLICIES[name], shown, windows or ALL_WINDOWS, costs)
        _check_length(results[name])
    mix = "+".join(f"{spec.name}={spec.trace.name}" for spec in specs)
    run = {"host": host.name, "mix": mix, "policy": policy, "source": source}
    return row(run, results[policy], results["none"], results["oracle"])


def _is_watched() -> bool:
    return sys.stderr.isatty()


def _check_output(json_path: Path | None, host: Path, guests: tuple[str, ...]) -> None:
    """Raise WrongUsageError if the figures would take the place of what they are made from."""
    traces = [text.partition("=")[2].partition(",")[0] for text in guests]
    read = {os.path.realpath(one) for one in (str(host), *traces)}
    if json_path is not None and os.path.realpath(json_path) in read:
        raise WrongUsageError(f"--json {json_path} is read by this run", hint="name another file")


def _check_length(result: "SimulationResult") -> None:
    """Raise VmplaceError for a run that is no program's, but somebody's mistake in a number."""
    longest = max(guest.run_time_s for guest in result.guests.values())
    if not longest <= MOST_RUN_TIME_S:
        raise VmplaceError(
            f"the guests would run for {longest:.0f} s of modelled time; policies are simulated for at most "
            f"{MOST_RUN_TIME_S:.0f} s",
            hint="check the trace's counts and the host's latencies, or take fewer --windows",
        )


def _shown(value: Any) -> str:
    if value is None:
        return "no answer"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
