"""``vmplace doctor``: what the host can do, what it cannot, why, and the cure."""

import sys
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from vmplace.topology.capabilities import can_work, probe_host
from vmplace.topology.capability import Capability, Roots
from vmplace.topology.guests_libvirt import SYSTEM_URI

if TYPE_CHECKING:
    from rich.text import Text

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
LEAST_WIDTH = 20
"""For what was seen, on a terminal that has no room for it."""


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--libvirt-uri", default=SYSTEM_URI, show_default=True, help="Where libvirt is asked.")
def doctor(as_json: bool, libvirt_uri: str) -> None:
    """Check what this host offers to vmplace, and name the cure for what is missing."""
    from vmplace.interfaces.settings_check import checked_settings

    config, settings = checked_settings()
    # Beside the socket an agent notes what it has of the kernel.
    found = probe_host(roots=Roots(run=Path(config.socket).parent), libvirt_uri=libvirt_uri)
    capabilities = sorted([*found, settings], key=lambda one: not one.needed)
    if as_json:
        report = {"can_work": can_work(capabilities), "capabilities": capabilities}
        click.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        print_capabilities(capabilities)
    sys.exit(0 if can_work(capabilities) else 1)


def print_capabilities(capabilities: list[Capability]) -> None:
    """Print what is needed, what is there, and what would help with its cure; then the verdict.

    What is missing and nobody needs is not shown.
    """
    from rich.console import Console

    console = Console(highlight=False)
    groups = {
        "Needed": [one for one in capabilities if one.needed],
        "Also there": [one for one in capabilities if not one.needed and one.answer],
        "Better with": [one for one in capabilities if not one.needed and not one.answer and one.cure],
    }
    for title, group in groups.items():
        if group:
            console.print(f"[bold]{title}[/]")
            for one in group:
                # A path that is too long for its line is not cut: a terminal goes on in the next one.
                console.print(*_lines(one, console.width), sep="\n", soft_wrap=True)
            console.print()
    console.print(_verdict(capabilities))


def _lines(one: Capability, width: int) -> Iterator["Text"]:
    """Yield its lines of so many columns: mark, name, and what was seen; the cure below it."""
    from rich.text import Text

    mark, colour = MARKS[one.answer]
    colour = colour if one.needed or one.answer else "yellow"
    room = max(LEAST_WIDTH, width - NAME_WIDTH - 5)
    column = textwrap.TextWrapper(room, break_long_words=False, break_on_hyphens=False)
    seen = [(text, "") for text in column.wrap(one.why)]
    if one.cure and not one.answer:
        seen += [(text, "dim") for text in column.wrap(f"-> {one.cure}")]
    left = zip_longest([mark], textwrap.wrap(one.name, NAME_WIDTH), fillvalue="")
    for (mark, name), (text, style) in zip_longest(left, seen, fillvalue=("", "")):
        yield Text.assemble((f"{mark:3} ", colour), f"{name:{NAME_WIDTH}} ", (text, style))


def _verdict(capabilities: list[Capability]) -> str:
    lacking = [capability.name for capability in capabilities if capability.needed and not capability.answer]
    if lacking:
        return f"The agent cannot work here; it lacks: {', '.join(lacking)}."
    return "The agent can work here.  Next: vmplace plan"
