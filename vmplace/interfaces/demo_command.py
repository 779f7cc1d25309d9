"""``vmplace demo``: what vmplace sees and would do, on guests that were recorded; needs no root, no host."""

import os
import time
import webbrowser
from importlib import resources
from pathlib import Path

import click
import msgspec

from vmplace.interfaces.options import examples, json_option, print_json

RECORDING = "demo.vmptrace"


@click.command(epilog=examples("vmplace demo\nvmplace demo --no-open --out /tmp/demo.html --json"))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("vmplace-demo.html"),
    show_default=True, help="The report.",
)  # fmt: skip
@click.option("--no-open", is_flag=True, help="Do not open the report in a browser.")
@json_option
def demo(out: Path, no_open: bool, as_json: bool) -> None:
    """Replay a recording that comes with vmplace, and write a report about it.

    The recording has six guests on a host of four NUMA nodes.  Their memory is on other nodes than their
    vCPUs.  The default settings plan with the nodes and rates of accesses that an agent read there.  The
    report shows what is accessed from where, and what would have been moved; it needs the extra "report".
    Nothing is changed on this machine; OUT is overwritten.
    """
    from vmplace.agent.config import LoadedConfig
    from vmplace.agent.config_sections import Config
    from vmplace.interfaces.report_command import write_page
    from vmplace.interfaces.report_demo import demo_sections, rehearsed
    from vmplace.interfaces.tables import print_rehearsal

    with resources.as_file(resources.files(__package__) / RECORDING) as path:
        reported = rehearsed(path, LoadedConfig(Config()))
        result = msgspec.to_builtins(reported.rehearsal, str_keys=True)
        if not as_json:
            # Before the report: that needs more libraries.
            print_rehearsal(result)
        sections = demo_sections(path, reported)
    made = time.strftime("made %Y-%m-%d %H:%M by vmplace demo")
    write_page(out, "vmplace: what it sees, and what it would do", made, sections)
    if as_json:
        print_json({"policy": reported.policy, "report": str(out.resolve()), **result})
    else:
        click.echo(f"report: {out.resolve().as_uri()}")
    if not no_open and has_screen():
        webbrowser.open(out.resolve().as_uri())


def has_screen() -> bool:
    """Tell whether a browser can open a window: a browser in the terminal would block the command."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
