"""The command line: ``vmplace COMMAND``; each command's code is imported only when it runs.

Installed extensions add commands of their own (extensions.py).
"""

import errno
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from vmplace import __version__
from vmplace.errors import VmplaceError
from vmplace.extensions import extension, extension_names
from vmplace.interfaces.error_lines import asks_json, error_line
from vmplace.interfaces.exit_codes import EXIT_FAILED
from vmplace.interfaces.options import WholeSentences
from vmplace.interfaces.output_file import FULL

GROUP = "vmplace.commands"
UNWRITABLE = FULL | {errno.EBADF, errno.EAGAIN}
"""What a write to standard output may end with; an error of a file has its name."""
OUTPUT_CURE = "free space on its disk, or have standard output go elsewhere"
COMMANDS = {
    "demo": "vmplace.interfaces.demo_command:demo",
    "agent": "vmplace.interfaces.agent_command:agent",
    "status": "vmplace.interfaces.look_commands:status",
    "top": "vmplace.interfaces.top_command:top",
    "show": "vmplace.interfaces.look_commands:show",
    "why": "vmplace.interfaces.look_commands:why",
    "plan": "vmplace.interfaces.act_commands:plan",
    "apply": "vmplace.interfaces.act_commands:apply",
    "undo": "vmplace.interfaces.act_commands:undo",
    "pause": "vmplace.interfaces.act_commands:pause",
    "resume": "vmplace.interfaces.act_commands:resume",
    "fit": "vmplace.interfaces.fit_commands:fit",
    "advise": "vmplace.interfaces.fit_commands:advise",
    "policy": "vmplace.interfaces.policy_commands:policy",
    "record": "vmplace.interfaces.recording_commands:record",
    "replay": "vmplace.interfaces.recording_commands:replay",
    "calibrate": "vmplace.interfaces.calibrate_command:calibrate",
    "report": "vmplace.interfaces.report_command:report",
    "metrics": "vmplace.interfaces.metrics_command:metrics",
    "completion": "vmplace.interfaces.completion_command:completion",
    "doctor": "vmplace.interfaces.doctor:doctor",
    "install": "vmplace.interfaces.install_command:install",
    "uninstall": "vmplace.interfaces.install_command:uninstall",
    "simulate": "vmplace.simulate.commands:simulate_command",
    "sweep": "vmplace.fleet.commands:sweep",
    "fleet-model": "vmplace.fleet.model_command:fleet_model",
    "kube": "vmplace.cloud.kubernetes.commands:kube",
    "openstack": "vmplace.cloud.openstack.commands:openstack",
    "sweep-report": "vmplace.fleet.commands:sweep_report_command",
}


class LazyGroup(WholeSentences):
    """Imports a command's module only when that command runs, so that ``vmplace status`` starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table, then those of extensions."""
        return [*COMMANDS, *(name for name in extension_names(GROUP) if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, or None for a name that nobody has."""
        if cmd_name not in COMMANDS:
            added: click.Command | None = extension(GROUP, cmd_name)
            if added is None and cmd_name == "lab":
                hint = "in a checkout pip install --editable ./lab; the package vmplace-lab has a vmplace-lab"
                raise VmplaceError("the emulated host is not installed", hint=hint)
            return added
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Place the memory and vCPUs of a KVM host's guests by what they really access."""


def main() -> None:
    """Run the command line."""
    run_command(cli)


def run_command(command: click.Command) -> None:
    """Run a command; errors made for people are shown as such, and as JSON to who asked for that."""
    _prepare_output()
    if asks_json(sys.argv[1:]):
        sys.exit(_run_for_program(command))
    try:
        _called(command)
    except VmplaceError as err:
        line = error_line(err)
        click.echo(f"vmplace: {line.error.message}", err=True)
        if line.error.cure:
            click.echo(f"  hint: {line.error.cure}", err=True)
        sys.exit(line.exit_code)


def _run_for_program(command: click.Command) -> int:
    """Return the exit code; an error is one line of JSON on stderr."""
    try:
        status = _called(command, standalone_mode=False)
    except (VmplaceError, click.ClickException, click.Abort) as err:
        line = error_line(err)
        click.echo(msgspec.json.encode(line).decode(), err=True)
        return line.exit_code
    except BrokenPipeError:
        _write_no_more()
        return EXIT_FAILED
    return status if isinstance(status, int) else 0


def _prepare_output() -> None:
    """Have output fail as late as it is written, and no character of it make it fail."""
    if sys.stdout is None:
        # Closed.  Nothing else may get its descriptor; a write fails as it would there.
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A locale may lack characters of tables, and names of guests and files need be no text.
            stream.reconfigure(errors="backslashreplace")


def _called(command: click.Command, **how: Any) -> Any:
    """Run a command; raises VmplaceError where its output cannot be written."""
    try:
        return command(**how)
    except OSError as err:
        if err.errno not in UNWRITABLE or err.filename is not None:
            raise
        _write_no_more()
        raise VmplaceError(f"output cannot be written: {err.strerror}", hint=OUTPUT_CURE) from err


def _write_no_more() -> None:
    """Write nothing at exit, either."""
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
