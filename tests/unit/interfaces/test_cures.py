"""Every error that a command makes for a person names its cure: each verb, with what a person gets wrong."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.served_agent import asked, served
from tests.unit.test_prose import commands
from vmplace.errors import VmplaceError
from vmplace.interfaces.cli import COMMANDS, cli

ASKING = (
    ("status",), ("show", "db1"), ("why", "db1"), ("top", "--once"), ("apply",), ("pause",), ("resume",),
    ("fit", "1:1"), ("advise", "1:1"),
)  # fmt: skip
"""Ask the agent, and cannot do without."""
WITHOUT_ONE = {f"vmplace {words[0]}" for words in ASKING} | {
    "vmplace report",
    "vmplace kube features",
    "vmplace openstack publish",
}
"""Promise exit code 4 in their help: the last three with some of their options."""
OF_NOBODY = (("show", "no"), ("why", "no"), ("plan", "no"), ("policy", "explain", "no"))
WITHOUT_GUESTS = (("status",), ("fit", "9999:1"))
FILES = (
    ("replay", "{file}"), ("record", "{none}/x"), ("report", "{file}"), ("policy", "validate", "{file}"),
    ("policy", "validate", "{none}"), ("agent", "--check", "--config", "{file}"),
    ("agent", "--config", "{none}"),
    ("undo", "--config", "{file}"), ("plan", "--config", "{file}"), ("metrics", "write", "{none}/x"),
    ("metrics", "serve", "--listen", "nowhere"), ("simulate", "{file}"),
    ("simulate", "--host", "{none}", "--guest", "a={file}"),
    ("completion", "bash", "{none}"), ("calibrate", "--show", "--out", "{none}"),
)  # fmt: skip
"""Read or write files: one that is no such file, and one in a folder that is not there."""


def cure(result: Result) -> str | None:
    """Return the cure that is shown; wrong usage shows its own, as click does."""
    if isinstance(result.exception, VmplaceError):
        return result.exception.hint
    assert isinstance(result.exception, SystemExit | None), result.exception
    return "usage" if result.exit_code == 2 else result.output.partition("hint: ")[2]


pytestmark = pytest.mark.usefixtures("own_process")


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_without_an_agent_the_cure_is_to_start_it(words: tuple[str, ...], tmp_path: Path):
    result = asked(tmp_path / "none", *words)
    assert isinstance(result.exception, VmplaceError)
    assert "systemctl start vmplace" in str(result.exception.hint)


@pytest.mark.parametrize("words", OF_NOBODY, ids=" ".join)
def test_a_guest_that_is_not_there_is_answered_with_those_that_are(words: tuple[str, ...], tmp_path: Path):
    agent = World([guest("db1")]).agent()
    agent.run(windows=1)
    with served(agent, tmp_path / "s") as path:
        result = asked(path, *words)
    assert isinstance(result.exception, VmplaceError) and "db1" in str(result.exception.hint)
    assert str(result.exception) == "no guest 'no'" and result.stdout == ""


@pytest.mark.parametrize("words", WITHOUT_GUESTS, ids=" ".join)
def test_nothing_there_is_reported_with_what_to_do(words: tuple[str, ...], tmp_path: Path):
    agent = World([]).agent()
    agent.run(windows=1)
    with served(agent, tmp_path / "s") as path:
        result = asked(path, *words)
    assert isinstance(result.exception, VmplaceError) and result.exception.hint


@pytest.mark.parametrize("words", FILES, ids=" ".join)
def test_a_file_that_is_wrong_or_not_there_is_reported_with_the_cure(words: tuple[str, ...], tmp_path: Path):
    (file := tmp_path / "wrong").write_text("\x7f = no such thing\n")
    given = [word.format(file=file, none=tmp_path / "no/such") for word in words]
    result = CliRunner(env={"VMPLACE_SOCKET": str(tmp_path / "none")}).invoke(cli, given)
    assert result.exit_code != 0
    assert cure(result), result.exception


def test_only_help_of_commands_that_ask_the_agent_promises_the_code_for_none():
    shown = {names: one.get_help(click.Context(one, info_name=names)) for names, one in commands(cli)}
    assert {names for names, text in shown.items() if "4  no agent answers" in text} == WITHOUT_ONE


@pytest.mark.parametrize("verb", COMMANDS)
def test_each_verb_tells_its_options_and_examples(verb: str):
    reported = CliRunner().invoke(cli, [verb, "--help"])
    assert reported.exit_code == 0
    assert "Examples:" in reported.output or verb in {"completion"}, reported.output


@pytest.mark.parametrize("verb", COMMANDS)
def test_an_option_that_no_verb_has_is_wrong_usage(verb: str):
    result = CliRunner().invoke(cli, [verb, "--no-such-option"])
    assert result.exit_code == 2 and "--help" in result.output
