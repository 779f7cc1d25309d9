"""``vmplace plan`` without an agent: what one look shows, and what kept guests out of the plan."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.agent.agent_world import ClockOfFreeDecisions, World, guest
from vmplace.agent import wiring
from vmplace.agent.parts import Parts
from vmplace.agent.wakeup import Wakeup
from vmplace.interfaces.cli import cli
from vmplace.interfaces.options import NothingError

UUID = "8f1d3c52-0000-0000-0000-000000000001"


def planned(world: World, folder: Path, patch: pytest.MonkeyPatch, *words: str) -> Result:
    """Return what the command says of a world without an agent."""
    parts = Parts(world, world, world.policy, "auto", world, clock=ClockOfFreeDecisions())
    patch.setattr(wiring, "open_parts", lambda *_, **__: parts)
    patch.setattr(Wakeup, "stop_on_signals", lambda _self: None)
    config = folder / "vmplace.toml"
    config.write_text(f'window_ms = 20\nsocket = "{folder}/control.sock"\nstate_dir = "{folder}"\n')
    argv = ["plan", *words, "--config", str(config), "--socket", str(folder / "control.sock")]
    return CliRunner().invoke(cli, argv)


def test_one_look_is_enough_for_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = planned(World([guest("db1")], nid_of={"db1": 0}), tmp_path, monkeypatch)
    assert done.exit_code == 0 and "the vCPUs run on node 1" in done.stdout
    assert done.stderr.startswith("note: nothing counts accesses") and "\ndb1:" not in done.stderr


@pytest.mark.parametrize("words", [(), ("db1",)], ids=str)
def test_a_guest_that_is_not_planned_for_is_named_with_the_reason(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    world = World([replace(guest("db1"), uuid=UUID)], nid_of={"db1": 0}, awaited=frozenset({UUID}))
    done = planned(world, tmp_path, monkeypatch, *words)
    assert str(done.exception) == "nothing to move"
    assert done.stderr == "db1: libvirt does not answer, so its policy is not known yet\n"
    # There is no agent that could answer `vmplace why`.
    assert isinstance(done.exception, NothingError) and "above" in str(done.exception.hint)


def test_scripts_read_one_document_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    world = World([replace(guest("db1"), uuid=UUID)], awaited=frozenset({UUID}))
    done = planned(world, tmp_path, monkeypatch, "--json")
    assert json.loads(done.stdout)["moves"] == [] and done.stderr == ""
