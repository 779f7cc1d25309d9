"""The feature file of a node: by the words of Node Feature Discovery, gone when its writer is."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from click.testing import CliRunner

from tests.unit.agent.agent_world import World, guest
from tests.unit.interfaces.served_agent import running, served
from vmplace.cloud.kubernetes.features import feature_file
from vmplace.errors import VmplaceError
from vmplace.interfaces.cli import cli

ROOT = Path(__file__).parents[2]
LABEL = re.compile(
    r"vmplace\.io/[a-z0-9]([-a-z0-9]*[a-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
)
"""A label as Kubernetes' reference has it: a name, and a value of 63 characters at most."""


def test_each_line_is_a_label_or_a_directive() -> None:
    text = feature_file("auto", (0, 1, 8), (0, 8), 0.0)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert "# +expiry-time=1970-01-01T00:00:00Z" in comments
    labels = [line for line in text.splitlines() if line not in comments]
    assert all(LABEL.fullmatch(line) for line in labels)
    assert "vmplace.io/numa-tight=0_8" in labels and "vmplace.io/all-tight=false" in labels


def test_a_host_whose_nodes_are_all_tight_says_so() -> None:
    assert "vmplace.io/all-tight=true" in feature_file("auto", (0, 1), (0, 1), 0.0)


def test_the_file_is_taken_away_with_its_writer(tmp_path: Path) -> None:
    world = World([guest("db1")])
    argv = [sys.executable, "-c", "from vmplace.interfaces.cli import main; main()", "kube", "features"]
    options = ["--dir", str(tmp_path), "--interval", "1", "--socket", str(tmp_path / "s")]
    file, limit_s = tmp_path / "vmplace", time.monotonic() + 60
    with running(world, world.agent(), tmp_path / "s"):
        process = subprocess.Popen([*argv, *options], cwd=ROOT)
        while not file.exists() and time.monotonic() < limit_s:
            time.sleep(0.1)
        assert "vmplace.io/present=true" in file.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not file.exists()


def test_one_file_is_written_for_one_look(tmp_path: Path) -> None:
    folder = tmp_path / "features.d"
    folder.mkdir()
    agent = World([guest("db1")]).agent()
    agent.run(windows=1)
    with served(agent, tmp_path / "s") as path:
        argv = ["kube", "features", "--once", "--dir", str(folder), "--socket", str(path)]
        answer = CliRunner().invoke(cli, argv)
    assert answer.exit_code == 0, answer.output
    assert [file.name for file in folder.iterdir()] == ["vmplace"]
    assert "vmplace.io/present=true" in (folder / "vmplace").read_text().splitlines()


def test_without_an_agent_nothing_is_written(tmp_path: Path) -> None:
    answer = CliRunner().invoke(
        cli, ["kube", "features", "--once", "--dir", str(tmp_path), "--socket", str(tmp_path / "s")]
    )
    assert isinstance(answer.exception, VmplaceError)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_reported_with_the_cure(tmp_path: Path) -> None:
    agent = World([guest("db1")]).agent()
    agent.run(windows=1)
    with served(agent, tmp_path / "s") as path:
        argv = ["kube", "features", "--once", "--dir", str(tmp_path / "none"), "--socket", str(path)]
        answer = CliRunner().invoke(cli, argv)
    assert isinstance(answer.exception, VmplaceError)
    assert "Node Feature Discovery" in (answer.exception.hint or "")


def test_an_agent_that_has_just_begun_labels_no_host_without_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "features.d"
    folder.mkdir()
    with served(World([guest("db1")]).agent(), tmp_path / "s") as path:
        argv = ["kube", "features", "--once", "--dir", str(folder), "--socket", str(path)]
        answer = CliRunner().invoke(cli, argv)
    assert isinstance(answer.exception, VmplaceError)
    assert list(folder.iterdir()) == []
