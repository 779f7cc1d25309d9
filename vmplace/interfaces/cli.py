"""The command line: ``vmplace COMMAND``; each command's code is imported only when it runs."""

import importlib
import sys

import click

from vmplace import __version__
from vmplace.errors import VmplaceError

COMMANDS = {
    "agent": "vmplace.interfaces.agent_command:agent",
    "status": "vmplace.interfaces.look_commands:status",
    "show": "vmplace.interfaces.look_commands:show",
    "why": "vmplace.interfaces.look_commands:why",
    "plan": "vmplace.interfaces.act_commands:plan",
    "apply": "vmplace.interfaces.act_commands:apply",
    "undo": "vmplace.interfaces.act_commands:undo",
    "pause": "vmplace.interfaces.act_commands:pause",
    "resume": "vmplace.interfaces.act_commands:resume",
    "record": "vmplace.interfaces.recording_commands:record",
    "replay": "vmplace.interfaces.recording_commands:replay",
    "calibrate": "vmplace.interfaces.calibrate_command:calibrate",
    "report": "vmplace.interfaces.report_command:report",
    "metrics": "vmplace.interfaces.metrics_command:metrics",
    "doctor": "vmplace.interfaces.doctor:doctor",
    "simulate": "vmplace.simulate.commands:simulate_command",
    "lab": "vmplace.lab.commands:lab",
}


class LazyGroup(click.Group):
    """Import a command's module when it is asked for, so that ``vmplace status`` starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, or None for a name that is not in the table."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Place guest memory and vCPUs of a KVM host by what the guests really touch."""


def main() -> None:
    """Run the command line; errors made for people are one sentence and a hint, exit code 1."""
    try:
        cli()
    except VmplaceError as err:
        click.echo(f"vmplace: {err}", err=True)
        if err.hint:
            click.echo(f"  hint: {err.hint}", err=True)
        # Commands that document further codes raise errors that carry them (exit_codes.py).
        sys.exit(getattr(err, "exit_code", 1))
