"""``vmplace status|show|why``: look at the running agent."""

from pathlib import Path

import click

from vmplace.interfaces.client import ask
from vmplace.interfaces.options import (
    NothingError,
    examples,
    json_option,
    print_json,
    socket_option,
)


@click.command(
    epilog=examples("vmplace status\nvmplace status --json | jq .guests.db1.estimated_lar", needs_agent=True)
)
@json_option
@socket_option
def status(as_json: bool, socket: Path | None) -> None:
    """Show the agent and its guests: where their memory is, what was moved, at what cost.

    "LAR" is the share of accesses that stay on the vCPU's own node (1.00 is best): by pages, an estimate,
    and by counters of the CPU, a column more where these tell local from remote accesses. Memory by node,
    what was moved, and copies are in MiB.
    """
    data = ask("status", path=socket)
    if as_json:
        print_json(data)
    else:
        from vmplace.interfaces.tables import print_status

        print_status(data)
    if not data["guests"]:
        raise NothingError("no guests", hint="a guest appears here within some seconds of its start")


@click.command(epilog=examples("vmplace show db1", needs_agent=True))
@click.argument("guest")
@json_option
@socket_option
def show(guest: str, as_json: bool, socket: Path | None) -> None:
    """Show where the memory and vCPUs of GUEST are, what may be moved, and what is hot.

    The strips draw each RAM range from its lowest to its highest address: the height of a block is
    heat, its colour the node.
    """
    data = ask("show", guest, path=socket)
    if as_json:
        print_json(data)
        return
    from vmplace.interfaces.tables import print_guest

    print_guest(data)


@click.command(epilog=examples("vmplace why db1", needs_agent=True))
@click.argument("guest")
@json_option
@socket_option
def why(guest: str, as_json: bool, socket: Path | None) -> None:
    """Explain why memory and vCPUs of GUEST were moved, or were not."""
    data = ask("why", guest, path=socket)
    if as_json:
        print_json(data)
        return
    from vmplace.interfaces.why_tables import print_decisions

    print_decisions(data)
