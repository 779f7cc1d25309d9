"""vmplace as `pip install .` makes it, without any extra: all of it answers, and says what it lacks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.served_agent import served

EXTRAS = (
    "distributed duckdb fsspec google.protobuf grafana_foundation_sdk grpc keystoneauth1 libvirt lightkube"
    " matplotlib openstack prometheus_client pymetis scipy tenacity textual"
)
"""Top modules of what pyproject.toml names as extras; CONTRIBUTING.md says what each is for."""
BLOCK = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}.split()))"
HELP = """
import click
from vmplace.interfaces.cli import COMMANDS, cli

def shown(command, name):
    context = click.Context(command)
    print(name, len(command.get_help(context)))
    if isinstance(command, click.Group):
        # Extensions are other distributions, with dependencies of their own.
        for sub in command.list_commands(context) if command is not cli else COMMANDS:
            shown(command.get_command(context, sub), f"{name} {sub}")

shown(cli, "vmplace")
"""
RUN = "from vmplace.interfaces.cli import main; main()"


def run(code: str, *words: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", f"{BLOCK}\n{code}", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


HEAVY = "importlib.metadata libvirt logging numpy rich textual tomllib vmplace.topology.sysfs"
"""What takes long to load, and is of no use to a script that asks for the state."""
TELL = f"import sys, atexit; atexit.register(lambda: print('heavy:', *{HEAVY.split()} & sys.modules.keys()))"


def test_a_script_that_asks_for_the_state_waits_for_no_library(tmp_path: Path):
    agent = World([guest("db1")]).agent()
    with served(agent, tmp_path / "control.sock") as path:
        argv = [sys.executable, "-c", f"{TELL}; {RUN}", "status", "--json", "--socket", str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    answer, _, heavy = done.stdout.rpartition("heavy:")
    assert json.loads(answer)["version"] and heavy.split() == [], done.stderr


def test_each_command_has_help():
    done = run(HELP)
    assert done.returncode == 0, done.stderr
    assert {"vmplace metrics serve", "vmplace sweep", "vmplace openstack", "vmplace top"} <= {
        line.rpartition(" ")[0] for line in done.stdout.splitlines()
    }


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("metrics", "print", "--socket", "none"), "vmplace[metrics]"),
        (("policy", "get", "db1"), "libvirt"),
        (("demo", "--no-open"), "vmplace[report]"),
    ],
    ids=str,
)
def test_what_needs_an_extra_says_which(words: tuple[str, ...], cure: str, tmp_path: Path):
    done = run(f"import os; os.chdir({str(tmp_path)!r})\n{RUN}", *words)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert cure in done.stderr
