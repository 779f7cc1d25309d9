"""Scenarios in the emulated host, from the guest's declaration to the meter's verdict."""

import pytest

from lab import scenario_stage
from lab.machine import boot_host
from lab.progress import Progress
from lab.scenario import Scenario, read_scenario
from lab.scenario_meter import read_window
from lab.scenario_result import ScenarioResult
from lab.scenario_run import prepare_stage, run_scenario

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return read_scenario("one-guest")


@pytest.fixture(scope="module")
def result(scenario: Scenario) -> ScenarioResult:
    return run_scenario(scenario, scenario.managers, Progress())


def test_the_control_stays_remote(result: ScenarioResult) -> None:
    small = result.managers["none"].guests["small"]
    assert small.lar_before is not None and small.lar_before < 0.05
    assert small.lar_after is not None and small.lar_after < 0.05
    assert result.managers["none"].moved_bytes == 0


def test_kernel_balancing_is_seen_to_move_memory(result: ScenarioResult) -> None:
    """Not our code at work: it shows that scenario and meter can tell a good placement."""
    kernel = result.managers["kernel"]
    assert (kernel.guests["small"].lar_after or 0) > 0.8
    assert kernel.kernel_counters["numa_pages_migrated"] > 0


def test_vmplace_brings_the_memory_home(result: ScenarioResult) -> None:
    small = result.managers["vmplace"].guests["small"]
    assert small.lar_after is not None and small.lar_after >= 0.95


def test_no_manager_changes_a_byte(result: ScenarioResult) -> None:
    assert all(manager.guests["small"].intact for manager in result.managers.values())


def test_declared_touches_are_the_metered_accesses(scenario: Scenario) -> None:
    stage = prepare_stage(scenario, Progress())
    with boot_host(stage.topology, meter=True, snapshot=stage.snapshot, files=stage.files) as host:
        touches = []
        for _ in range(2):
            touches.append(scenario_stage.ask_payloads(host, scenario.guests, "status", 20)["small"])
            window = read_window(host, stage.topology, 4.0, 1)
    made = (touches[1]["touches"] - touches[0]["touches"]) / (touches[1]["t"] - touches[0]["t"])
    metered = window.guests[1].accesses.sum() / window.seconds
    # The guest's kernel and the verification add some, lines still in the modelled caches save some.
    assert 0.7 * made < metered < 2.5 * made


@pytest.mark.parametrize(
    ("name", "guest", "has_huge"), [("one-guest", "small", True), ("shared-text", "caller", False)]
)
def test_a_guest_in_small_pages_is_backed_by_no_huge_one(name: str, guest: str, has_huge: bool) -> None:
    stage = prepare_stage(read_scenario(name), Progress())
    with boot_host(stage.topology, snapshot=stage.snapshot, files=stage.files) as host:
        smaps = f"/proc/$(cat /run/libvirt/qemu/{guest}.pid)/smaps_rollup"
        kib = int(host.run(f"awk '/^AnonHugePages:/ {{ print $2 }}' {smaps}").stdout)
    assert (kib > 0) == has_huge


def test_a_corrupted_byte_is_reported_by_the_guest(scenario: Scenario) -> None:
    stage = prepare_stage(scenario, Progress())
    with boot_host(stage.topology, snapshot=stage.snapshot, files=stage.files) as host:
        scenario_stage.ask_payloads(host, scenario.guests, "corrupt 5000000", 20)
        answer = scenario_stage.ask_payloads(host, scenario.guests, "verify", 60)["small"]
    assert (answer["bad_pages"], answer["first_bad"]) == (1, 5000000 // 4096)
