"""What scripts read of each verb: JSON or text on stdout, and the exit code, as it was looked through.

After a change on purpose: GOLDEN=write pytest on this file, and read the diff.
Keys may be added within a version of vmplace; one that goes or is named anew breaks somebody's script.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.interfaces.captured_world import Captured, captured_agent, fixed, made_up
from tests.unit.interfaces.served_agent import asked, running, served
from tests.unit.interfaces.test_golden import hold
from tests.unit.interfaces.test_json_schemas import errors
from vmplace.interfaces.cli import cli

HOST = "16amd64-4n8c"
LOOKS = {
    "status": "", "top": "--once", "show": "db1", "why": "db1", "plan": "", "fit": "2:8192",
    "advise": "2:64", "policy explain": "db1",
}  # fmt: skip
"""Asked with --json of an agent on a captured host."""
ACTS = {"pause": "db1", "resume": "db1", "apply": "db1", "undo": "db1"}
"""Asked with --json of an agent that runs."""
ALONE = {
    "agent": "--check --config {}/bad.toml",
    "completion": "bash",
    "fleet-model": "--hosts 4 --days 1 --packs --fit 2:2048:0.2 --json",
    "openstack provider-config": "",
    "policy validate": "{}/bad.toml --json",
}
"""Need no agent; {} is a folder with a file that has a mistake."""
VARYING = re.compile(r"(_s|_ms|_ns|_seconds|pid|unix|at|socket)$")
BAD = 'window_ms = "x"\n'


def stable(value: Any, key: str = "") -> Any:
    """Return the answer with a word for each number that no two runs have alike, others to nine places."""
    if isinstance(value, dict):
        return {name: stable(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [stable(inner, key) for inner in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and VARYING.search(key):
        return "a number"
    return round(value, 9) if isinstance(value, float) else value


def read(verb: str, result: Result, folder: Path) -> str:
    """Return what a script reads: the exit code, and stdout, of JSON without what varies.

    JSON must be of its schema.
    """
    text = result.stdout.replace(str(folder), "/folder")
    if text.startswith("{"):
        assert errors(verb, json.loads(text)) == []
        text = json.dumps(stable(json.loads(text)), indent=1, ensure_ascii=False)
    return f"exit code {result.exit_code}\n{text}"


def file_of(verb: str) -> str:
    return f"scripts/{verb.replace(' ', '-')}"


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch, fixed(patch):
        agent = captured_agent(HOST)
        with served(agent, tmp_path_factory.mktemp("agent") / "s") as path:
            yield path


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    world = Captured([], captured=HOST)
    world.running = [made_up("db1", world.host(), 0)]
    with running(world, world.agent(), tmp_path_factory.mktemp("acting") / "s") as path:
        yield path


@pytest.mark.parametrize("verb", LOOKS)
def test_what_an_agent_answers(looked_at: Path, verb: str, tmp_path: Path):
    hold(file_of(verb), read(verb, asked(looked_at, *verb.split(), *LOOKS[verb].split(), "--json"), tmp_path))


@pytest.mark.parametrize("verb", ACTS)
def test_what_an_agent_that_runs_does(acting: Path, verb: str, tmp_path: Path):
    hold(file_of(verb), read(verb, asked(acting, *verb.split(), *ACTS[verb].split(), "--json"), tmp_path))


@pytest.mark.parametrize("verb", ALONE)
@pytest.mark.usefixtures("own_process")
def test_what_needs_no_agent(verb: str, tmp_path: Path):
    (tmp_path / "bad.toml").write_text(BAD)
    words = ALONE[verb].replace("{}", str(tmp_path)).split()
    hold(file_of(verb), read(verb, CliRunner().invoke(cli, [*verb.split(), *words]), tmp_path))
