"""The command line: ``vmplace COMMAND``; each command's code is imported only when it runs.

Installed extensions add commands of their own (extensions.py).
"""

import importlib
import os
import sys
from pathlib import Path

import click
import msgspec

from vmplace import __version__
from vmplace.errors import VmplaceError
from vmplace.extensions import extension, extension_names
from vmplace.interfaces.error_lines import asks_json, error_line
from vmplace.interfaces.exit_codes import EXIT_FAILED
from vmplace.interfaces.options import WholeSentences

GROUP = "vmplace.commands"
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
                hint = "pip install ./lab in a checkout; the package vmplace-lab has it as vmplace-lab"
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
    if asks_json(sys.argv[1:]):
        sys.exit(_run_for_program(command))
    try:
        command()
    except VmplaceError as err:
        line = error_line(err)
        click.echo(f"vmplace: {line.error.message}", err=True)
        if line.error.cure:
            click.echo(f"  hint: {line.error.cure}", err=True)
        sys.exit(line.exit_code)


def _run_for_program(command: click.Command) -> int:
    """Return the exit code; an error is one line of JSON on stderr."""
    try:
        status = command(standalone_mode=False)
    except (VmplaceError, click.ClickException, click.Abort) as err:
        line = error_line(err)
        click.echo(msgspec.json.encode(line).decode(), err=True)
        return line.exit_code
    except BrokenPipeError:
        # The reader closed the pipe: nothing may be written at exit, either.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        return EXIT_FAILED
    return status if isinstance(status, int) else 0
