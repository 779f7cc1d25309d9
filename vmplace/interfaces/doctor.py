"""``vmplace doctor``: what the host can do, what it cannot, why, and the cure."""

import sys
from typing import TYPE_CHECKING

import click
import msgspec

from vmplace.topology.capabilities import can_work, probe_host
from vmplace.topology.capability import Capability
from vmplace.topology.guests_libvirt import SYSTEM_URI

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = """\b
Exit code: 0 the agent can work, 1 it cannot (the needed lines say why).
\b
Examples:
  vmplace doctor
  vmplace doctor --json | jq '.capabilities[] | select(.answer != true)'
"""
MARKS = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}
NAME_WIDTH = 21
"""Columns for the name: as long as "transparent huge pages".  The rest of 80 holds most paths."""


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--libvirt-uri", default=SYSTEM_URI, show_default=True, help="Where libvirt is asked.")
def doctor(as_json: bool, libvirt_uri: str) -> None:
    """Check what this host offers to vmplace, and name the cure for what is missing."""
    capabilities = probe_host(libvirt_uri=libvirt_uri)
    if as_json:
        report = {"can_work": can_work(capabilities), "capabilities": capabilities}
        click.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        print_capabilities(capabilities)
    sys.exit(0 if can_work(capabilities) else 1)


def print_capabilities(capabilities: list[Capability]) -> None:
    """Print what is needed, what is there, and what would help with its cure; then the verdict."""
    from rich.console import Console

    console = Console(highlight=False)
    groups = {
        "Needed": [one for one in capabilities if one.needed],
        "Also there": [one for one in capabilities if not one.needed and one.answer],
        "Better with": [one for one in capabilities if not one.needed and not one.answer],
    }
    for title, group in groups.items():
        if group:
            console.print(f"[bold]{title}[/]")
            console.print(_table(group))
            console.print()
    console.print(_verdict(capabilities))


def _table(group: list[Capability]) -> "Table":
    """Return a line for each capability: mark, name, and what was seen; the cure below it."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_column(width=3)
    table.add_column(width=NAME_WIDTH)
    table.add_column(overflow="fold", ratio=1)
    for one in group:
        mark, colour = MARKS[one.answer]
        style = colour if one.needed or one.answer else "yellow"
        table.add_row(Text(mark, style), one.name, Text(one.why))
        if one.cure and not one.answer:
            table.add_row("", "", Text(f"-> {one.cure}", "dim"))
    return table


def _verdict(capabilities: list[Capability]) -> str:
    lacking = [capability.name for capability in capabilities if capability.needed and not capability.answer]
    if lacking:
        return f"The agent cannot work here; it lacks: {', '.join(lacking)}."
    return "The agent can work here.  Next: vmplace plan"
