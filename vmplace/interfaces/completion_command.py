"""``vmplace completion``: let the shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from vmplace.errors import VmplaceError
from vmplace.interfaces.options import examples

SHELLS = ("bash", "zsh", "fish")


@click.command(epilog=examples('eval "$(vmplace completion bash)"'))
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the code that completes vmplace's commands and options in SHELL."""
    click.echo(completion_code(shell))


def completion_code(shell: str) -> str:
    """Return that code; raises VmplaceError for a shell that click does not know."""
    from vmplace.interfaces.cli import cli

    found = get_completion_class(shell)
    if found is None:
        raise VmplaceError(f"this click knows no {shell}", hint=f"try one of {', '.join(SHELLS)}")
    return found(cli, {}, "vmplace", "_VMPLACE_COMPLETE").source()
