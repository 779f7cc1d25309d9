"""Scenario files: what is accepted, and what is said about what is not."""

import contextlib
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from lab import scenario_stage
from lab.machine import LabHost
from lab.scenario import SCENARIOS, check_on_nodes, parse_scenario, read_scenario
from lab.topology import read_topology
from vmplace.errors import ConfigError, VmplaceError

GUEST = """
[[guests]]
name = "web"
start_nids = [1, 1]
nids = [0, 0]
memory_mib = 128
workload = { arena_mib = 64, touch = [{ vcpus = "0-1", ranges = ["0+64"] }] }
"""
SCENARIO = 'name = "try"\ntopology = "n2"\n' + GUEST


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_a_scenario_that_comes_with_vmplace_is_valid_and_named_as_its_file(path: Path) -> None:
    assert read_scenario(str(path)).name == path.stem


def test_guest_ids_count_from_one() -> None:
    assert parse_scenario(SCENARIO, source="try.toml").guest_id("web") == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "nids = [0, 0]",
            "nids = [0, 0]\nfloats = true",
            "try.toml: $.guests[0] (web): nids pins vCPUs that float",
        ),
        (
            "memory_mib = 128",
            "memory_mib = 128\nmemroy = 1",
            "try.toml: $.guests[0]: Object contains unknown field `memroy`",
        ),
        ("memory_mib = 128", 'memory_mib = "128"', "$.guests[0].memory_mib: Expected `int`"),
        ("memory_mib = 128", "memory_mib = 80", "arena of 64 MiB does not fit a guest of 80 MiB"),
        ("nids = [0, 0]", "nids = [0]", "nids has 1 entries, start_nids 2"),
        ('"0+64"', '"32+64"', "not within the arena"),
        ('"0+64"', '"all"', "'all' is not OFFSET"),
        ('"0-1"', '"0-2"', "are not among the guest's 2 vCPUs"),
        ('name = "try"', "name = ", "try.toml: not TOML: "),
        ('topology = "n2"', 'topology = "n2"\nmanagers = ["numax"]', "$.managers[0]: Invalid enum value"),
    ],
)
def test_a_wrong_file_is_reported_with_its_place_and_reason(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_scenario(SCENARIO.replace(old, new, 1), source="try.toml")


def test_two_guests_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two guests are called 'web'"):
        parse_scenario(SCENARIO + GUEST, source="try.toml")


def test_cells_hold_every_vcpu_once() -> None:
    cells = "cells = [{ vcpus = [0], memory_mib = 64 }, { vcpus = [0], memory_mib = 64 }]\nworkload"
    with pytest.raises(ConfigError, match="each vCPU exactly once"):
        parse_scenario(SCENARIO.replace("workload", cells, 1), source="try.toml")


@pytest.mark.parametrize("keys", ["", 'guests = ["web"]', 'compare = "run_time"', "tolerance = 0.1"])
def test_an_expectation_that_claims_nothing_is_refused(keys: str) -> None:
    text = f'{SCENARIO}\n[[expect]]\nmanagers = ["none"]\n{keys}\n'
    with pytest.raises(ConfigError, match="it claims nothing") as caught:
        parse_scenario(text, source="try.toml")
    assert caught.value.place == "try.toml: $.expect[0]"
    assert parse_scenario(f"{text}intact = true\n", source="try.toml").expect[0].intact


def test_an_expectation_of_an_unknown_guest_is_refused() -> None:
    text = SCENARIO + '[[expect]]\nmanagers = ["none"]\nguests = ["db"]\nintact = true\n'
    with pytest.raises(ConfigError, match="no guest 'db'"):
        parse_scenario(text, source="try.toml")


def test_a_vcpu_on_a_node_without_cpus_is_refused() -> None:
    scenario = parse_scenario(SCENARIO, source="try.toml")
    with pytest.raises(VmplaceError, match="node 1, which has no CPU"):
        check_on_nodes(scenario, {0: (0, 1), 1: ()})


def test_an_unknown_scenario_is_reported_with_the_known_ones() -> None:
    with pytest.raises(VmplaceError, match="no scenario 'nowhere'") as caught:
        read_scenario("nowhere")
    assert "wrong-node" in (caught.value.hint or "")


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_a_huge_number_anywhere_in_a_scenario_ends_in_no_time(path: Path) -> None:
    text = path.read_text()
    for number in re.finditer(r"(?<![\w.])\d+(?:\.\d+)?", text):
        began = time.process_time()
        with contextlib.suppress(VmplaceError):
            parse_scenario(f"{text[: number.start()]}{10**18}{text[number.end() :]}", source="x")
        assert time.process_time() - began < 1, number


def test_vcpus_are_pinned_to_their_nodes_or_may_run_anywhere() -> None:
    floating = SCENARIO.replace("nids = [0, 0]", "floats = true")
    for text, cpus in ((SCENARIO, "0,1"), (floating, "0,1,2,3")):
        scripts: list[str] = []
        host = SimpleNamespace(run=lambda script, timeout, scripts=scripts: scripts.append(script))
        scenario_stage.apply_operator_pins(
            cast(LabHost, host), parse_scenario(text, source="try.toml"), read_topology("n2")
        )
        said = [f"virsh -q vcpupin web {vcpu} {cpus} --live" for vcpu in (0, 1)]
        assert scripts == ["\n".join(["set -e", *said, f"virsh -q emulatorpin web {cpus} --live"])]
