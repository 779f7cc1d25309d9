"""``vmplace fit`` and ``advise`` as a script reads them: output, JSON, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.agent_world import guest
from tests.unit.agent.test_room import Crowded
from tests.unit.interfaces.served_agent import asked, running, served
from vmplace.agent.loop import Agent
from vmplace.errors import VmplaceError


@pytest.fixture
def world() -> Crowded:
    return Crowded([guest("db1")])


@pytest.fixture
def agent(world: Crowded) -> Agent:
    found = world.agent()
    found.run(windows=1)
    return found


def code(result: Any) -> int:
    return int(getattr(result.exception, "exit_code", result.exit_code))


def test_it_fits_says_where(agent: Agent, tmp_path: Path):
    with served(agent, tmp_path / "s") as path:
        result = asked(path, "fit", "1:8")
        reported = json.loads(asked(path, "fit", "1:8", "--json").output)
    assert result.exit_code == 0 and "1 vCPU, 8 MiB: fits on node 1" in result.output
    assert reported["nids"] == [1] and [node["free_cores"] for node in reported["nodes"]] == [2.0, 1.0]


def test_it_fits_on_either_of_two_nodes(agent: Agent, tmp_path: Path):
    with served(agent, tmp_path / "s") as path:
        assert "fits on node 0 or 1\n" in asked(path, "fit", "1:1").output


def test_it_does_not_fit_says_which_moves_would_make_room(agent: Agent, tmp_path: Path):
    with served(agent, tmp_path / "s") as path:
        result = asked(path, "fit", "2:6")
        reported = json.loads(asked(path, "fit", "2:6", "--json").stdout)
    assert code(result) == 3
    assert isinstance(result.exception, VmplaceError) and "--make-room" in str(result.exception.hint)
    assert "db1: 1 MiB to node 1: makes room, and is nearer to its vCPUs" in result.output
    assert (reported["nids"], reported["room_nid"], reported["done"]) == ([], 0, [])


def test_what_nothing_makes_room_for_is_not_begun(agent: Agent, tmp_path: Path, world: Crowded):
    with served(agent, tmp_path / "s") as path:
        result = asked(path, "fit", "2:4096", "--make-room")
    assert code(result) == 3 and world.applied == []
    assert "it fits on no node, and no moves make room" in str(result.exception)
    assert "fits" not in result.output, "once is enough"


def test_make_room_moves_and_is_done_with_exit_code_0(world: Crowded, tmp_path: Path):
    agent = world.agent()
    agent.run(windows=1)
    with running(world, agent, tmp_path / "s") as path:
        result = asked(path, "fit", "2:6", "--make-room")
    assert (result.exit_code, world.nid_of) == (0, {"db1": 1}), result.output
    assert "node 0 has room for 2 vCPUs and 6 MiB" in result.output


@pytest.mark.parametrize("size", ["", "x", "4:", "0:5", "-1:5", "4:8G", "99999:1", "4"])
def test_a_wrong_size_is_wrong_usage_and_shows_a_right_one(size: str):
    result = asked(Path("/nowhere"), "fit", "--", size) if size == "-1:5" else asked(Path("/no"), "fit", size)
    assert result.exit_code == 2
    assert size == "-1:5" or "4:8192" in result.output


@pytest.mark.parametrize(("verb", "form"), [("fit", "VCPUS:MIB,"), ("advise", "VCPUS[:MIB],")])
def test_a_size_that_is_wrong_is_answered_with_the_form_that_the_command_takes(verb: str, form: str):
    assert f"write {form} such as" in " ".join(asked(Path("/no"), verb, "x").output.split())


def test_advice_is_a_node_list_that_numactl_takes(agent: Agent, tmp_path: Path):
    with served(agent, tmp_path / "s") as path:
        one, all_nodes = asked(path, "advise", "2"), asked(path, "advise", "3:8")
        reported = json.loads(asked(path, "advise", "2", "--json").output)
    assert (one.output, all_nodes.output) == ("0\n", "0-1\n")
    assert (reported["nids"], reported["fits"]) == ([0], True)


def test_advice_for_what_fits_nowhere_is_given_with_a_word_on_stderr(agent: Agent, tmp_path: Path):
    with served(agent, tmp_path / "s") as path:
        result = asked(path, "advise", "64:8")
    assert (result.exit_code, result.stdout) == (0, "0-1\n")
    assert "not all of it fits" in result.stderr


@pytest.mark.parametrize("words", [("fit", "1:1"), ("advise", "1:1")])
def test_without_an_agent_it_is_exit_code_4(words: tuple[str, ...], tmp_path: Path):
    assert code(asked(tmp_path / "none", *words)) == 4
