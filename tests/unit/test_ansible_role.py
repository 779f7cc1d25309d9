"""The Ansible role takes back the settings that it wrote, leaves those of others, and makes no accounts."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vmplace.agent.config import parse_config
from vmplace.agent.config_sections import Config

ROOT = Path(__file__).parents[2]
ROLE = ROOT / "ansible/roles/vmplace"


def written(settings: dict[str, Any]) -> str:
    """Return what the role writes for these settings."""
    jinja2 = pytest.importorskip("jinja2")
    text = (ROLE / "templates/vmplace.toml.j2").read_text().partition("\n")[2]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["to_json"] = json.dumps
    shown: str = environment.from_string(text).render(ansible_managed="Ours", vmplace_settings=settings)
    return shown


@pytest.mark.parametrize("settings", [{}, {"guests": {"*": {"mode": "advise"}}}])
def test_the_role_knows_the_file_that_it_wrote_from_that_of_the_package(settings: dict[str, Any]):
    """Else it would leave the mode advise there once that is taken out of the inventory."""
    (ours,) = re.findall(r"grep (-qs .*) /etc/", (ROLE / "tasks/present.yml").read_text())
    # What the role wrote before it had a line of its own: the default of ansible_managed alone.
    earlier = "# Ansible managed\n" + written(settings).partition("role says;")[2].partition("\n")[2]
    example = (ROOT / "vmplace/agent/vmplace.toml.example").read_text()
    for text, is_known in ((written(settings), True), (earlier, True), (example, False)):
        done = subprocess.run(["grep", *shlex.split(ours)], input=text.encode(), check=False)
        assert (done.returncode == 0) == is_known


def test_a_file_of_no_settings_has_the_agents_defaults():
    assert parse_config(written({}), Path("vmplace.toml")).config == Config()


def test_viewers_are_looked_for_before_a_task_that_would_make_them():
    tasks = (ROLE / "tasks/present.yml").read_text()
    assert tasks.index("ansible.builtin.getent") < tasks.index("ansible.builtin.user")
