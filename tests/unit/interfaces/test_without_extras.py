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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("metrics", "print", "--socket", "none"), "in a checkout of vmplace: pip install '.[metrics]'"),
        (("policy", "get", "db1"), "libvirt"),
        (("demo", "--no-open"), "in a checkout of vmplace: pip install '.[report]'"),
    ],
    ids=str,
)
def test_what_needs_an_extra_says_which(words: tuple[str, ...], cure: str, tmp_path: Path):
    done = run(f"import os; os.chdir({str(tmp_path)!r})\n{RUN}", *words)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert cure in done.stderr


HIDE = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name in {EXTRAS.split()!r} else find(name, *more)
"""
AGENT = """
import atexit, json
from pathlib import Path
import vmplace.agent.wiring
from tests.unit.agent.agent_world import World, guest
from vmplace.agent.parts import Parts
from vmplace.policy import home

def tell():
    rss = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)
    print("at the end:", json.dumps([sorted(sys.modules), int(rss.split()[1])]))

atexit.register(tell)
world = World([guest("db1")])
vmplace.agent.wiring.open_parts = lambda config, actuator, beat: Parts(
    world, world, home.plan, "auto", actuator
)
"""
"""The agent as it ships, but for its host and guest, which are made up."""
STAND_IN_BYTES = 32 << 20
MOST_SHARE = 0.05
"""What two starts may differ by; they differ by 0.002, and a stand-in takes more than half of an agent."""


def stand_ins(folder: Path) -> Path:
    """Make all extras importable, be they installed or not; whoever imports one has its memory to bear."""
    for name in EXTRAS.split():
        package = folder.joinpath(*name.split("."))
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"held = b'x' * {STAND_IN_BYTES}\n")
    return folder


def agents_end(folder: Path, prepare: str) -> tuple[set[str], int]:
    """Run the agent for some windows; return the modules that it has then, and the KiB that it takes."""
    config = folder / "vmplace.toml"
    config.write_text(
        f'window_ms = 20\nnuma_balancing = "leave"\nlibvirt = false\nstate_dir = "{folder}"\n'
        f'socket = "{folder}/control.sock"\n'
    )
    code = f"import sys\n{prepare}\n{AGENT}\n{RUN}"
    argv = [sys.executable, "-c", code, "agent", "--config", str(config), "--windows", "5"]
    root = Path(__file__).parents[3]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    modules, rss_kib = json.loads(done.stdout.rpartition("at the end:")[2])
    return set(modules), rss_kib


@pytest.mark.slow
def test_the_agent_is_the_same_with_all_extras_and_with_none(tmp_path: Path):
    folder = stand_ins(tmp_path / "extras")
    modules, rss_kib = agents_end(tmp_path, HIDE)
    modules_with, rss_kib_with = agents_end(tmp_path, f"sys.path.append({str(folder)!r})")
    assert "vmplace.agent.loop" in modules and modules_with == modules
    assert abs(rss_kib_with - rss_kib) < MOST_SHARE * rss_kib
