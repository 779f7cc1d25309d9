"""``vmplace top``: guests and nodes as they change, on a terminal."""

import sys
from pathlib import Path

import click

from vmplace.errors import VmplaceError
from vmplace.extras import extra_cure
from vmplace.interfaces.client import ask
from vmplace.interfaces.options import FiniteRange, examples, json_option, print_json, socket_option

SORTS = ("name", "lar", "memory", "moved", "refused")


@click.command(
    epilog=examples(
        "vmplace top\nvmplace top --sort lar\nvmplace top --once\nwatch vmplace top --once", needs_agent=True
    )
)
@click.option("--once", is_flag=True, help="Print one picture, of 80 columns, and end.")
@click.option(
    "--sort", type=click.Choice(SORTS), default="name", show_default=True, help="Which guest is first."
)
@click.option(
    "--interval",
    type=FiniteRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two updates.",
)
@json_option
@socket_option
def top(once: bool, sort: str, interval: float, as_json: bool, socket: Path | None) -> None:
    """Show guests and NUMA nodes live: memory by node, LAR, imbalance, moves, refusals.

    Memory is in GiB. Moved and refused are in MiB, since the agent first saw the guest. LAR is the share
    of accesses that stay on the vCPU's node, estimated by pages. Keys: q quits; n, l, m, v, r sort by name,
    LAR, memory, moved and refused. Without a terminal, one picture is printed, as with --once.
    """
    if as_json:
        print_json(ask("status", path=socket))
        return
    if once or not is_terminal():
        from vmplace.interfaces.top_frame import frame
        from vmplace.interfaces.top_table import print_frame

        print_frame(frame(ask("status", path=socket), order=sort))
        return
    try:
        from vmplace.interfaces.top_app import TopApp
    except ImportError as err:
        hint = f"apt install python3-textual, or {extra_cure('top')}; `top --once` works without"
        raise VmplaceError(f"the live view is not there: {err}", hint=hint) from err
    TopApp(lambda: ask("status", path=socket), ask("status", path=socket), interval, sort).run()


def is_terminal() -> bool:
    """Tell whether stdout is a terminal."""
    return sys.stdout.isatty()
