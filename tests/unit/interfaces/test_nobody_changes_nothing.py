"""A user without rights tries every verb of the command line and of the socket, and every file: in vain.

Beside a running agent, on a real process as its guest.  All that the agent has, and the guest, is compared.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import rich

import vmplace
from tests.unit.actuation.child_guest import Child, child_guest
from tests.unit.nobody import NOBODY, holds_for_nobody, needs_nobody
from tests.unit.simulate.small_trace import private_pages
from vmplace.errors import VmplaceError
from vmplace.interfaces.cli import COMMANDS, cli
from vmplace.interfaces.client import ask
from vmplace.interfaces.protocol import ACTS, LOOKS

ROOT = Path(__file__).parents[3]
is_readable = all(folder.stat().st_mode & 0o005 == 0o005 for folder in (ROOT, *ROOT.parents))
pytestmark = [
    needs_nobody,
    pytest.mark.skipif(not is_readable, reason="needs a checkout that others may read"),
]
SECONDS = 20
HOST = ROOT / "vmplace/simulate/hosts/two-node.toml"
# {} is the agent's folder: whoever could, would write there.
VERBS = {
    "demo": "--no-open --out {}/report.html",
    "agent": "--config {}/vmplace.toml --once",
    "status": "",
    "show": "guest0",
    "why": "guest0",
    "plan": "--config {}/vmplace.toml",
    "apply": "",
    "undo": "--config {}/vmplace.toml",
    "pause": "guest0",
    "resume": "",
    "fit": "2:1024 --make-room",
    "install": "--start",
    "uninstall": "--purge",
    "advise": "2:1024",
    "policy apply": "guest0 --config --agent-config {}/vmplace.toml",
    "policy explain": "guest0 --config {}/vmplace.toml",
    "policy get": "guest0",
    "policy set": "guest0 mode=auto",
    "policy validate": "{}/vmplace.toml",
    "record": "{}/x.vmptrace --duration 1 --config {}/vmplace.toml",
    "replay": "{}/state/journal",
    "calibrate": "--out {}/state/bandwidth.json",
    "report": "--status --out {}/report.html",
    "metrics dashboard": "",
    "metrics print": "",
    "metrics rules": "",
    "metrics serve": "--listen 127.0.0.1:0",
    "metrics write": "{}/vmplace.prom",
    "completion": "bash",
    "doctor": "",
    "simulate": f"--host {HOST} --guest db={{}}/t.npz --json {{}}/result.json",
    "sweep": "{}/state/journal --out {}/results",
    "sweep-report": "{}/state/journal",
    "fleet-model": "--hosts 2 --days 0.1",
    "openstack publish": "--cloud none --host here --once",
    "openstack provider-config": "",
    "openstack withdraw": "--cloud none --host here",
    "kube agent": "--node none --kubeconfig {}/none",
    "kube features": "--once --dir {}",
    "top": "--once",
}


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with child_guest(256) as running:
        yield running


@pytest.fixture(scope="module")
def folder(child: Child) -> Iterator[Path]:
    """Run an agent that is paused, so that it changes nothing by itself; others may enter its folder."""
    made = Path(tempfile.mkdtemp(prefix="vmplace-test-"))
    made.chmod(0o755)
    (made / "vmplace.toml").write_text(
        f'state_dir = "{made}/state"\nsocket = "{made}/run/control.sock"\nwindow_ms = 50\n'
        'numa_balancing = "leave"\n'
    )
    np.savez(made / "t.npz", **private_pages())
    script = "tests.unit.interfaces.agent_process"
    argv = [sys.executable, "-m", script, str(made / "vmplace.toml"), "1", "1", str(child.process.pid)]
    agent = subprocess.Popen([*argv, str(child.hva)], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until_answers(made / "run/control.sock")
        ask("pause", path=made / "run/control.sock")
        yield made
        assert agent.poll() is None
    finally:
        agent.kill()
        agent.wait()
        shutil.rmtree(made)


def until_answers(path: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if ask("status", path=path)["windows"] >= 2:
                return
        except VmplaceError:
            time.sleep(0.05)
    raise AssertionError("no agent")


@pytest.fixture(params=[0o600, 0o666], ids=["closed", "open"])
def control(folder: Path, request: pytest.FixtureRequest) -> Path:
    """The socket as it is, and as it is for those who may look."""
    path = folder / "run/control.sock"
    path.chmod(request.param)
    return path


def all_there_is(folder: Path, child: Child) -> dict[str, Any]:
    """Return what nobody may have changed."""
    files = {
        str(path): (path.lstat().st_mode, path.lstat().st_uid, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }
    reported = ask("status", path=folder / "run/control.sock")
    held = {name: (guest["mode"], guest["state"]) for name, guest in reported["guests"].items()}
    sysctl = Path("/proc/sys/kernel/numa_balancing")
    return {
        "files": files,
        "agent": (reported["pid"], reported["paused"], held),
        "cpus": [os.sched_getaffinity(vcpu.tid) for vcpu in child.guest.vcpus],
        "balancing": sysctl.read_text() if sysctl.exists() else None,
    }


def verbs(command: click.Command, path: str = "") -> Iterator[str]:
    """Yield the names of all commands that come with vmplace."""
    if not isinstance(command, click.Group):
        yield path
        return
    for name in command.list_commands(click.Context(command)):
        if path or name in COMMANDS:
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from verbs(below, f"{path} {name}".strip())


def test_all_verbs_are_tried():
    assert set(verbs(cli)) == set(VERBS)


def is_refused_or_harmless(argv: list[str], control: Path) -> bool:
    """Run a command here; it may do its work, or fail in words, or wait to be asked.

    False for a command line that is wrong: nothing was tried.
    """
    os.environ["VMPLACE_SOCKET"] = str(control)
    os.chdir("/")
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(0))
    signal.alarm(2 if argv[:2] == ["metrics", "serve"] else SECONDS)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    try:
        cli.main(argv, prog_name="vmplace", standalone_mode=False)
    except click.UsageError as err:
        print(f"{argv}: {err.format_message()}", file=sys.stderr)
        # A file that nobody may read is refused while the words are looked at.
        return "is not readable" in err.format_message()
    except (VmplaceError, click.ClickException, SystemExit):
        pass
    return True


@pytest.fixture(scope="module", autouse=True)
def _modules() -> None:
    """Import all that commands import while that may be read: the interpreter may be root's own."""
    for package in (vmplace, rich):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    # Of numpy, what is imported at its first use.
    importlib.import_module("numpy.ma")
    # What finds the recording that comes with vmplace.
    importlib.import_module("importlib.readers")
    # A server looks its own name up.
    importlib.import_module("encodings.idna")
    # numpy loads it when a percentile is asked for.
    importlib.import_module("numpy.ma")


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_of_nobody_changes_nothing(folder: Path, control: Path, child: Child, verb: str):
    argv = [*verb.split(), *VERBS[verb].replace("{}", str(folder)).split()]
    before = all_there_is(folder, child)
    assert holds_for_nobody(lambda: is_refused_or_harmless(argv, control))
    assert all_there_is(folder, child) == before


def said_to(control: Path, command: str) -> str:
    """Return what the agent answers to one line."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(control))
        size = {"vcpus": 1, "mib": 1}
        sock.sendall(json.dumps({"command": command, "guest": "guest0", "size": size}).encode() + b"\n")
        return sock.makefile().readline()


@pytest.mark.parametrize("command", sorted(LOOKS | ACTS))
def test_a_word_of_nobody_on_the_socket_changes_nothing(
    folder: Path, control: Path, child: Child, command: str
):
    before = all_there_is(folder, child)

    def is_denied() -> bool:
        try:
            reported = json.loads(said_to(control, command))
        except PermissionError:
            return True
        return command in LOOKS or reported.get("kind") == "denied"

    assert holds_for_nobody(is_denied)
    assert all_there_is(folder, child) == before


def test_no_file_of_the_agent_may_be_written_or_put_in_place_of(folder: Path):
    paths = [folder, *folder.rglob("*")]
    assert {"journal", "journal.lock", "control.sock", "hook.sock"} <= {path.name for path in paths}
    for path in paths:
        assert path.lstat().st_uid != NOBODY
    closed = [path for path in paths if path.name != "control.sock"]
    assert holds_for_nobody(lambda: not any(os.access(path, os.W_OK) for path in closed))
