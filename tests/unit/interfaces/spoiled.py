"""A plugin of pytest that has each test fail which reads what its command prints: ``pytest -p THIS``.

SPOILED is JSON: by test, the command that does its work unseen, prints nothing, or whose schema refuses
everything.  What became of the tests is written to SPOILED_RESULT.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import jsonschema
import pytest

from vmplace.interfaces.cli import cli

WHAT = json.loads(os.environ["SPOILED"])
OUTCOMES: dict[str, list[str]] = {}


def command_of(verb: str) -> click.Command:
    """Return the command of a verb."""
    found: click.Command | None = cli
    for word in verb.split():
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), word)
    assert found is not None
    return found


def without_output(verb: str) -> contextlib.AbstractContextManager[Any]:
    """Have what a command prints in this process go nowhere."""
    wanted, invoke = command_of(verb), click.Command.invoke

    def unheard(command: click.Command, ctx: click.Context) -> Any:
        if command is not wanted:
            return invoke(command, ctx)
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            return invoke(command, ctx)

    return mock.patch.object(click.Command, "invoke", unheard)


def without_work(verb: str) -> contextlib.AbstractContextManager[Any]:
    """Have a command do nothing."""
    return mock.patch.object(command_of(verb), "callback", lambda **_: None)


def without_process(verb: str) -> contextlib.AbstractContextManager[Any]:
    """Have a process that should run a command do nothing."""
    words, begin = verb.split(), subprocess.Popen.__init__

    def started(popen: Any, argv: Any, *args: Any, **options: Any) -> None:
        said = [str(word) for word in argv]
        is_meant = any(said[at : at + len(words)] == words for at in range(len(said)))
        begin(popen, [sys.executable, "-c", ""] if is_meant else argv, *args, **options)

    return mock.patch.object(subprocess.Popen, "__init__", started)


def without_schema(verb: str) -> contextlib.AbstractContextManager[Any]:
    """Have the schema of a command refuse everything."""
    validator = jsonschema.Draft202012Validator
    find = validator.iter_errors

    def refused(self: Any, instance: Any, *args: Any, **options: Any) -> Iterator[Any]:
        if self.schema.get("title") == f"vmplace {verb} --json":
            yield jsonschema.ValidationError("refused")
        yield from find(self, instance, *args, **options)

    return mock.patch.object(validator, "iter_errors", refused)


HOW: dict[str, Callable[[str], contextlib.AbstractContextManager[Any]]] = {
    "output": without_output,
    "work": without_work,
    "process": without_process,
    "schema": without_schema,
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Spoil the command of this test, from its fixtures on."""
    how, verb = WHAT[item.nodeid.partition("[")[0]]
    with HOW[how](verb):
        return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what became of it."""
    OUTCOMES.setdefault(report.nodeid.partition("[")[0], []).append(report.outcome)


def pytest_sessionfinish() -> None:
    """Write it down."""
    Path(os.environ["SPOILED_RESULT"]).write_text(json.dumps(OUTCOMES))
