"""``vmplace fit|advise``: where would a guest of some size go?"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vmplace.interfaces.client import ask
from vmplace.interfaces.options import (
    NothingError,
    examples,
    json_option,
    print_json,
    socket_option,
)
from vmplace.interfaces.protocol import Size
from vmplace.topology.guest import MOST_VCPU_ID

MIB = 1 << 20
ORDER_S = 300.0


def parsed(*, needs_memory: bool) -> Callable[[click.Context, click.Parameter, str], Size]:
    """Return a callback that parses ``VCPUS:MIB``, as ``numad -w`` has it, and fails with an example."""

    def parse(_ctx: click.Context, _param: click.Parameter, value: str) -> Size:
        found = re.fullmatch(r"([0-9]{1,5})(?::([0-9]{1,9}))?", value)
        if not found or not 0 < int(found[1]) <= MOST_VCPU_ID + 1 or (found[2] is None and needs_memory):
            form = "VCPUS:MIB" if needs_memory else "VCPUS[:MIB]"
            raise click.BadParameter(f"{value!r} is no size: write {form}, such as 4:8192")
        return Size(int(found[1]), int(found[2] or 0) * MIB)

    return parse


@click.command(
    epilog=examples(
        "vmplace fit 4:8192\n"
        "vmplace fit 4:8192 --json | jq .nids\n"
        "sudo vmplace fit 4:8192 --make-room && virsh start db2",
        needs_agent=True,
    )
)
@click.argument("flavour", callback=parsed(needs_memory=True), metavar="VCPUS:MIB")
@click.option(
    "--make-room", is_flag=True, help="Move other guests' memory away, within the budget.  Only root may."
)
@json_option
@socket_option
def fit(flavour: Size, make_room: bool, as_json: bool, socket: Path | None) -> None:
    """Check whether a guest of VCPUS vCPUs and MIB MiB fits on one NUMA node now, and on which.

    A node needs a free physical core for each vCPU, and the memory beside a reserve of 3 %. Where only
    memory is short, the answer names the moves of other guests that make room: first memory that is away
    from its own vCPUs, then memory that was not touched lately. --make-room has the agent do these moves and
    keep the room free for five minutes, or until a guest starts.

    Exit code 0: it fits, or room was made. 3: it does not fit now.
    """
    data = ask("fit", size=flavour, path=socket)
    done = []
    if make_room and not data["nids"] and data["evictions"]:
        done = ask("make-room", size=flavour, path=socket, timeout_s=ORDER_S)
    if as_json:
        print_json({**data, "done": done})
    elif done:
        for line in done:
            click.echo(line)
    else:
        from vmplace.interfaces.fit_tables import print_fit

        print_fit(data)
    if not data["nids"] and not done:
        raise _fits_nowhere(data)


def _fits_nowhere(data: Any) -> NothingError:
    """Return the one message that says so; the table has what each node lacks."""
    if data["evictions"]:
        return NothingError("it fits on no node now", hint="--make-room does the moves")
    hint = "ask for less, or stop or migrate a guest"
    return NothingError("it fits on no node, and no moves make room", hint=hint)


@click.command(
    epilog=examples(
        "vmplace advise 4:8192\n"
        'virsh numatune db2 --nodeset "$(vmplace advise 4:8192)" --config\n'
        "vmplace advise 4 --json",
        needs_agent=True,
    )
)
@click.argument("flavour", callback=parsed(needs_memory=False), metavar="VCPUS[:MIB]")
@json_option
@socket_option
def advise(flavour: Size, as_json: bool, socket: Path | None) -> None:
    """Print the nodes on which a new guest would best run, as `numad -w` does, by what guests use.

    These are the fewest nodes that have the cores and the memory. Among equals, nodes near to each other win,
    then those whose memory other guests use least. Where counters tell, the vCPUs of other guests count by
    how much they run. A guest that fits nowhere gets all nodes, and a note on stderr.
    """
    data = ask("advise", size=flavour, path=socket)
    if as_json:
        print_json(data)
    else:
        from vmplace.interfaces.tables import cpulist

        click.echo(cpulist(data["nids"]))
    if not data["fits"]:
        click.echo("vmplace: not all of it fits, even on all nodes together", err=True)
