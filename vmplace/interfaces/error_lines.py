"""How is a command's error reported: to a person as a sentence and a hint, to a program as one line of JSON?

Programs ask with ``--json``.  The line is on stderr, so that stdout is data or nothing:

    {"error":{"code":"no-agent","message":"no agent at /run/…","cure":"start it: …"},"exit_code":4}

``vmplace/interfaces/error.schema.json`` describes it.
"""

import itertools
from collections.abc import Sequence

import click
import msgspec

from vmplace.errors import VmplaceError
from vmplace.interfaces.exit_codes import EXIT_FAILED
from vmplace.outside import printable

LONGEST = 4000
CODES = {
    "failed": "it did not work, or only in part",
    "usage": "the command line is wrong",
    "interrupted": "by Ctrl-C",
    "nothing": "there is no such guest, no guest at all, or nothing to move",
    "no-agent": "no agent answers",
    "denied": "only root may, or only the group vmplace",
    "busy": "the agent has too many clients, or one of them asked too often",
    "bad-request": "the agent is of another release",
    "bad-config": "a file written by hand is wrong; the message begins with the place in it",
    "bad-input": "data from the host, or from a file, is malformed",
    "bad-recording": "a recording is damaged, or of another version",
    "unsupported-host": "the host lacks a facility",
    "guest-gone": "the guest ended meanwhile",
    "journal": "the journal cannot be read or written: nothing was moved",
}
"""By code: when a command ends so.  A code keeps its meaning; others may come."""


class CommandError(msgspec.Struct, frozen=True):
    """One of CODES, for programs; a sentence and a cure for people, null where nobody knows one."""

    code: str
    message: str
    cure: str | None


class ErrorLine(msgspec.Struct, frozen=True):
    """An error, and the exit code of the command."""

    error: CommandError
    exit_code: int


def asks_json(words: Sequence[str]) -> bool:
    """Tell whether a command line asks for JSON; also one that is wrong in something else."""
    return "--json" in itertools.takewhile(lambda word: word != "--", words)


def error_line(err: VmplaceError | click.ClickException | click.Abort) -> ErrorLine:
    """Return what a program reads of an error."""
    match err:
        case VmplaceError():
            # Commands that document further codes raise errors that carry them (exit_codes.py).
            exit_code = getattr(err, "exit_code", EXIT_FAILED)
            cure = plain(err.hint) if err.hint else None
            return ErrorLine(CommandError(err.code, plain(str(err)), cure), exit_code)
        case click.UsageError(ctx=ctx):
            cure = f"see {ctx.command_path} --help" if ctx else None
            return ErrorLine(CommandError("usage", plain(err.format_message()), cure), err.exit_code)
        case click.ClickException():
            return ErrorLine(CommandError("failed", plain(err.format_message()), None), err.exit_code)
        case _:
            return ErrorLine(CommandError("interrupted", "interrupted", None), EXIT_FAILED)


def plain(text: str) -> str:
    """Return lines without what would move a terminal's cursor: names in them are of guests and files."""
    return "\n".join(printable(line, LONGEST) for line in text.split("\n"))
