"""The agent as a process: it serves, stops cleanly, survives kill -9 by its journal, and stays small."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.actuation.child_guest import Child, child_guest
from vmplace.interfaces.client import NoAgentError, ask

ROOT = Path(__file__).parents[3]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "vmplace.toml"
    path.write_text(
        f'state_dir = "{tmp_path}/state"\nsocket = "{tmp_path}/run/control.sock"\nwindow_ms = 50\n'
        'numa_balancing = "leave"\n'
    )
    return path


@pytest.fixture
def child() -> Iterator[Child]:
    with child_guest(256) as running:
        yield running


@pytest.fixture
def start(config: Path) -> Iterator[Start]:
    started = []

    def run(child: Child, *, guests: int = 1, mib: int = 1, windows: int = 2) -> "subprocess.Popen[str]":
        pid, hva = child.process.pid, child.hva
        script = "tests.unit.interfaces.agent_process"
        argv = [sys.executable, "-m", script, str(config), str(guests), str(mib), str(pid), str(hva)]
        process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        started.append(process)
        wait_for(process, config, windows)
        return process

    yield run
    for process in started:
        with process:
            process.kill()


def wait_for(process: "subprocess.Popen[str]", config: Path, windows: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if look(config)["windows"] >= windows:
                return
        except NoAgentError:
            pass
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate()[1])


def look(config: Path, *words: str) -> Any:
    return ask(*(words or ("status",)), path=config.parent / "run/control.sock")


def cli(config: Path, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", "from vmplace.interfaces.cli import main; main()", *words]
    env = os.environ | {"VMPLACE_SOCKET": str(config.parent / "run/control.sock")}
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=env, **options)


@pytest.mark.slow
def test_status_has_what_the_scenarios_read(config: Path, start: Start, child: Child):
    start(child)
    status = json.loads(cli(config, "status", "--json").stdout)
    reported = {"mode", "state", "vcpu_nids", "pages_by_node", "estimated_lar", "moved_bytes", "reasons"}
    assert reported <= set(status["guests"]["guest0"])
    assert status["guests"]["guest0"]["vcpu_nids"] == [1]
    for key in ("moved_bytes", "longest_move_call_ms", "cpu_seconds", "rss_bytes", "windows"):
        assert status[key] is not None
    assert status["mc_imbalance_estimate"] == pytest.approx(2**0.5)


@pytest.mark.slow
def test_a_clean_stop_leaves_no_socket_and_nothing_to_report(config: Path, start: Start, child: Child):
    agent = start(child)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(60) == 0
    assert not (config.parent / "run/control.sock").exists()
    start(child)
    assert not any("killed" in note for note in look(config)["notes"])


@pytest.mark.slow
def test_after_kill_9_the_next_start_reports_and_undo_without_an_agent_works(
    config: Path, start: Start, child: Child
):
    agent = start(child)
    agent.kill()
    agent.wait()
    second = start(child)
    reported = "; ".join(look(config)["notes"])
    assert f"pid {agent.pid} was killed" in reported and "guest0: 1 MiB" in reported
    second.kill()
    second.wait()
    undone = cli(config, "undo", "--config", str(config), "--json")
    assert undone.returncode == 0 and "guest0" in undone.stdout


@pytest.mark.slow
def test_after_kill_9_the_next_agent_is_still_paused_and_holds_the_guest_that_was_undone(
    config: Path, start: Start, child: Child
):
    agent = start(child)
    assert cli(config, "undo", "guest0").returncode == cli(config, "pause").returncode == 0
    agent.kill()
    agent.wait()
    start(child)
    status = json.loads(cli(config, "status", "--json").stdout)
    assert status["paused"] and status["guests"]["guest0"]["state"] == "held"
    assert cli(config, "resume").returncode == 0
    again = look(config)
    assert not again["paused"] and again["guests"]["guest0"]["state"] != "held"


@pytest.mark.slow
def test_a_second_agent_is_refused_and_the_first_goes_on(config: Path, start: Start, child: Child):
    first = start(child)
    second = cli(config, "agent", "--config", str(config), timeout=120)
    assert second.returncode == 1 and f"pid {first.pid}" in second.stderr
    assert look(config)["pid"] == first.pid


@pytest.mark.slow
def test_exit_codes_tell_no_agent_from_no_guest_and_wrong_usage(config: Path, start: Start, child: Child):
    assert cli(config, "status").returncode == 4
    start(child)
    assert cli(config, "show", "nobody").returncode == 3
    assert "known guests: guest0" in cli(config, "why", "nobody").stderr
    assert cli(config, "show").returncode == 2
    assert cli(config, "show", "guest0").returncode == 0


def test_a_wrong_config_refuses_to_start_with_place_and_cure(config: Path):
    config.write_text("windw_ms = 5\n")
    refused = cli(config, "agent", "--config", str(config), timeout=120)
    assert refused.returncode == 1
    assert f"{config}:1:1: unknown key 'windw_ms'" in refused.stderr
    assert "did you mean 'window_ms'?" in refused.stderr


@pytest.mark.slow
def test_the_agent_stays_below_60_mb_with_16_gib_of_guests(config: Path, start: Start, child: Child):
    config.write_text(config.read_text().replace("window_ms = 50", "window_ms = 500"))
    agent = start(child, guests=4, mib=4096, windows=4)
    text = Path(f"/proc/{agent.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert peak and int(peak[1]) * 1024 < 60e6


@pytest.mark.slow
def test_undo_where_nothing_was_ever_moved_says_so_and_is_done(config: Path):
    for words in (["undo"], ["undo", "--settings"]):
        undone = cli(config, *words, "--config", str(config))
        assert undone.returncode == 0, undone.stderr
        assert undone.stdout.startswith("nothing to ")
    of_nobody = cli(config, "undo", "db1", "--config", str(config))
    assert of_nobody.returncode == 3 and "no guest 'db1' in the journal" in of_nobody.stderr


@pytest.mark.slow
def test_undo_that_finds_nothing_is_the_same_with_an_agent(config: Path, start: Start, child: Child):
    alone = cli(config, "undo", "--config", str(config))
    start(child)
    cli(config, "undo", "--config", str(config))
    again = cli(config, "undo", "--config", str(config))
    assert (again.returncode, again.stdout) == (alone.returncode, alone.stdout) == (0, "nothing to undo\n")
    assert cli(config, "undo", "db1", "--settings", "--config", str(config)).returncode == 2


@pytest.mark.slow
def test_a_second_agent_with_another_state_takes_nothing_of_the_first(
    config: Path, start: Start, child: Child, tmp_path: Path
):
    first = start(child)
    other = tmp_path / "other.toml"
    other.write_text(config.read_text().replace("/state", "/other"))
    second = cli(config, "agent", "--config", str(other), timeout=120)
    assert second.returncode == 1 and "another agent serves" in second.stderr
    assert look(config)["pid"] == first.pid
