"""Each command has a test that reads what it prints or writes; --json is held to its schema by one.

The tests that are named here run once more, in a process of their own, each beside a command that is spoiled:
it prints nothing, does nothing, or its schema refuses everything.  A test that passes all the same reads
nothing.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.unit.interfaces.spoiled_table import OUTPUT, PROCESSES, SCHEMAS, SERVICES, WORK
from tests.unit.interfaces.test_golden_scripts import ACTS, ALONE, LOOKS, file_of
from tests.unit.interfaces.test_nobody_changes_nothing import verbs
from vmplace.fleet import json_schemas as fleet_schemas
from vmplace.interfaces import json_schemas
from vmplace.interfaces.cli import cli

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/data/golden"
SPOILED = {
    "output": OUTPUT,
    "work": WORK,
    "process": PROCESSES,
    "schema": SCHEMAS,
}
"""Which test fails when what is taken from a command."""
LIMIT_S = 600
WITHOUT = () if importlib.util.find_spec("duckdb") else ("tests/fleet/",)
"""Tests of sweeps: make test-cloud has what they need."""


def has_json(verb: str) -> bool:
    command: click.Command = cli
    for word in verb.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return any("--json" in option.opts for option in command.params)


def golden_is_json(verb: str) -> bool:
    file = GOLDEN / f"{file_of(verb)}.txt"
    return file.exists() and file.read_text().partition("\n")[2].startswith("{")


def test_each_command_has_a_test_that_reads_its_output() -> None:
    named = [*LOOKS, *ACTS, *ALONE, *OUTPUT, *WORK, *PROCESSES, *SERVICES]
    assert sorted(named) == sorted(verbs(cli))


def test_each_json_has_a_schema_and_a_test_that_holds_it_to_that() -> None:
    with_json = {verb for verb in verbs(cli) if has_json(verb)}
    assert with_json == set(json_schemas.schemas() | fleet_schemas.schemas())
    goldens = {verb for verb in (*LOOKS, *ACTS, *ALONE) if golden_is_json(verb)}
    assert with_json == goldens | set(SCHEMAS)


def spelled(verb: str, tree: ast.AST) -> bool:
    """Tell whether a list or a tuple of a file has the words of a verb, one after the other."""
    words = verb.split()
    rows = [node.elts for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple)]
    said = [[one.value if isinstance(one, ast.Constant) else None for one in row] for row in rows]
    return any(row[at : at + len(words)] == words for row in said for at in range(len(row)))


@pytest.mark.parametrize("verb", SERVICES)
def test_a_command_that_needs_a_cloud_is_run_by_the_test_that_is_named(verb: str) -> None:
    file, _, name = SERVICES[verb].partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert spelled(verb, tree) and not spelled(f"{verb} moon", tree)


@pytest.mark.slow
@pytest.mark.parametrize("how", SPOILED)
def test_a_test_that_is_named_fails_without_what_it_reads(how: str, tmp_path: Path) -> None:
    wanted = {test: (how, verb) for verb, test in SPOILED[how].items() if not test.startswith(WITHOUT)}
    result = tmp_path / "result.json"
    environment = os.environ | {"SPOILED": json.dumps(wanted), "SPOILED_RESULT": str(result)}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, *wanted]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    outcomes = {test: set(seen) for test, seen in json.loads(result.read_text()).items()}
    assert set(outcomes) == set(wanted)
    passed = {test for test, seen in outcomes.items() if not seen & {"failed", "skipped"}}
    assert not passed, "read nothing of their commands"


PLUGIN = "tests.unit.interfaces.spoiled"
