"""``vmplace doctor``: what the host can do, what it cannot, why, and the cure."""

import sys

import click
import msgspec

from vmplace.topology.capabilities import can_work, probe_host
from vmplace.topology.capability import Capability
from vmplace.topology.guests_libvirt import SYSTEM_URI

EXAMPLES = """\b
Exit code: 0 the agent can work, 1 it cannot (the needed lines say why).
\b
Examples:
  vmplace doctor
  vmplace doctor --json | jq '.capabilities[] | select(.answer != true)'
"""
MARKS = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--libvirt-uri", default=SYSTEM_URI, show_default=True, help="Where libvirt is asked.")
def doctor(as_json: bool, libvirt_uri: str) -> None:
    """Probe what this host can do for vmplace, and say the cure for what it cannot."""
    capabilities = probe_host(libvirt_uri=libvirt_uri)
    if as_json:
        report = {"can_work": can_work(capabilities), "capabilities": capabilities}
        click.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        print_capabilities(capabilities)
    sys.exit(0 if can_work(capabilities) else 1)


def print_capabilities(capabilities: list[Capability]) -> None:
    """Print the table and one sentence with the verdict."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("", "needed", "capability", "what was seen", "cure"):
        table.add_column(column, overflow="fold")
    for capability in capabilities:
        mark, colour = MARKS[capability.answer]
        needed = "needed" if capability.needed else ""
        style = colour if capability.needed or capability.answer else "yellow"
        table.add_row(
            f"[{style}]{mark}[/]",
            needed,
            capability.name,
            escape(capability.why),
            escape(capability.cure or ""),
        )
    console = Console(highlight=False)
    console.print(table)
    lacking = [capability.name for capability in capabilities if capability.needed and not capability.answer]
    verdict = (
        f"The agent cannot work here; it lacks: {', '.join(lacking)}."
        if lacking
        else "The agent can work here."
    )
    console.print(f"\n{verdict}")
