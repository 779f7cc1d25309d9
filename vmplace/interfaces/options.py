"""Options and output that the commands share."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from vmplace.errors import VmplaceError
from vmplace.interfaces.exit_codes import EXIT_CODES, EXIT_NOTHING, WITHOUT_AGENT
from vmplace.interfaces.protocol import indented

READ = click.Path(path_type=Path, readable=False)
"""A file that is read: one that may not be is no wrong usage, and who reads it says so."""
LONGEST_SENTENCE = 200
"""Characters."""
F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")(command)


def socket_option(command: F) -> F:
    """Add ``--socket``."""
    option = click.option(
        "--socket",
        "socket",
        type=READ,
        envvar="VMPLACE_SOCKET",
        help="The agent's control socket, if not the configured one.",
    )
    return option(command)


def config_option(command: F) -> F:
    """Add ``--config``."""
    option = click.option(
        "--config",
        "config",
        type=READ,
        help="Configuration file.  [default: /etc/vmplace/vmplace.toml, if it exists]",
    )
    return option(command)


def examples(text: str, *, needs_agent: bool = False) -> str:
    """Return an epilog: examples, then the exit codes; ``needs_agent``: it fails where no agent answers."""
    lines = "\n".join(f"  {line}" for line in text.strip().splitlines())
    codes = f"{EXIT_CODES}\n{WITHOUT_AGENT}" if needs_agent else EXIT_CODES
    return f"\b\nExamples:\n{lines}\n\n{codes}"


def print_json(data: Any) -> None:
    """Print ``data`` as indented JSON."""
    click.echo(indented(msgspec.to_builtins(data, str_keys=True)))


class WholeSentences(click.Group):
    """A group of commands whose help has the first sentence of each one's: click alone cuts it off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, one.get_short_help_str(LONGEST_SENTENCE)) for name, one in found if one is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class FiniteRange(click.FloatRange):
    """A float in a range; NaN, which compares with nothing, is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails for NaN and infinity, too."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


class NothingError(VmplaceError):
    """There is nothing to show or to do: exit code 3."""

    code = "nothing"
    exit_code = EXIT_NOTHING
