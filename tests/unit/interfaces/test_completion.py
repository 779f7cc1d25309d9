"""Shells complete commands; the agent's configuration can be checked without running it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from vmplace.errors import VmplaceError
from vmplace.interfaces.cli import cli
from vmplace.interfaces.completion_command import SHELLS


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_asks_vmplace(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert "_VMPLACE_COMPLETE" in done.output


def test_bash_completes_a_command() -> None:
    env = {"_VMPLACE_COMPLETE": "bash_complete", "COMP_WORDS": "vmplace sta", "COMP_CWORD": "1"}
    done = CliRunner().invoke(cli, [], env=env, prog_name="vmplace")
    assert "plain,status" in done.output.split()


def test_check_passes_a_right_configuration(tmp_path: Path) -> None:
    (config := tmp_path / "vmplace.toml").write_text("window_ms = 500\n")
    assert CliRunner().invoke(cli, ["agent", "--check", "--config", str(config)]).exit_code == 0


def test_check_names_the_guests_of_a_wrong_rule(tmp_path: Path) -> None:
    (config := tmp_path / "vmplace.toml").write_text('[guests."db*"]\nmode = "fast"\n')
    done = CliRunner().invoke(cli, ["agent", "--check", "--config", str(config)])
    assert isinstance(done.exception, VmplaceError)
    assert "db*" in str(done.exception)
