"""Forecasts of emulated run times, held against what the declared pattern means on paper."""

import json
from pathlib import Path

import pytest
from msgspec import structs

from lab.emulated_time import DILATION
from lab.scenario import Guest, ManagerName, Scenario, read_scenario
from lab.scenario_forecast import (
    POLICY_OF,
    can_forecast,
    dirty_share,
    forecast_run_times,
    misses_per_touch,
    numad_places,
    slowness,
)
from lab.topology import read_topology
from lab.workload import Touch, Workload
from vmplace.model.described_memory import LOCAL_LATENCY_NS, MLP


def guest(*touches: Touch, start: int = 0, nid: int = 0, name: str = "web") -> Guest:
    vcpus = 1 + max(vcpu for touch in touches for vcpu in touch.vcpu_ids())
    return Guest(
        name=name, start_nids=(start,) * vcpus, nids=(nid,) * vcpus, memory_mib=128,
        workload=Workload(arena_mib=64, touch=touches),
    )  # fmt: skip


def scenario(*guests: Guest) -> Scenario:
    return Scenario(name="try", topology="n2", guests=guests)


def run_times(one: Scenario, manager: str = "none") -> dict[str, float]:
    loads = {guest.name: 0.1 for guest in one.guests}
    return forecast_run_times(one, read_topology(one.topology), manager, loads)  # type: ignore[arg-type]


STREAM = Touch(vcpus="0", ranges=("0+64",), order="sequential")


@pytest.mark.parametrize(("start", "distance"), [(0, 10), (1, 20)])
def test_one_vcpu_waits_for_the_latency_of_its_pair_and_hardly_for_itself(start: int, distance: int) -> None:
    # 1e8 touches of a line each; one vCPU is a few percent of what a controller can do.
    alone_s = LOCAL_LATENCY_NS * distance / 10 / MLP * 1e8 / 1e9
    seconds = run_times(scenario(guest(STREAM, start=start)))["web"]
    assert alone_s < seconds < alone_s * 1.1


def test_memory_that_a_manager_brings_home_is_forecast_as_local() -> None:
    local, remote = run_times(scenario(guest(STREAM)))["web"], scenario(guest(STREAM, start=1))
    assert run_times(remote)["web"] > 1.5 * local
    for manager in ("kernel", "vmplace"):
        assert run_times(remote, manager)["web"] == pytest.approx(local, rel=0.03)
    assert local * 1.2 < run_times(remote, "interleave")["web"] < run_times(remote)["web"]


def test_numad_brings_vcpus_to_memory_as_hosts_that_run_it_pin_nothing() -> None:
    large = structs.replace(guest(STREAM, start=1), memory_mib=512)
    near = structs.replace(large, start_nids=large.nids)
    runs: list[tuple[Guest, ManagerName]] = [(near, "none"), (large, "none"), (large, "numad")]
    at_home, untouched, moved = (
        forecast_run_times(scenario(one), read_topology("n2"), manager, {})["web"] for one, manager in runs
    )
    assert untouched > 1.5 * at_home and moved == pytest.approx(at_home, rel=0.03)


def test_a_guest_is_so_much_slower_as_it_declares_fewer_touches_than_memory_allows() -> None:
    # One line after the other: a touch takes the latency over MLP, 29 million a second of emulated time.
    possible = 1e9 / (LOCAL_LATENCY_NS / MLP)
    for rate in (10.0, 40.0):
        one = scenario(guest(structs.replace(STREAM, rate=rate)))
        slow = slowness(one, read_topology("n2"))
        assert slow == pytest.approx(possible / (1000 * rate), rel=0.1)
    program = scenario(guest(structs.replace(STREAM, rate="max")))
    assert slowness(program, read_topology("n2")) == DILATION


@pytest.mark.parametrize(("write_percent", "is_local"), [(0, True), (20, False)])
def test_a_table_that_all_nodes_only_read_is_forecast_as_local_under_vmplace_alone(
    write_percent: int, is_local: bool
) -> None:
    shared = guest(Touch(vcpus="0-3", ranges=("0+64",), write_percent=write_percent))
    # As many vCPUs as CPUs: none can be brought nearer to the others.
    spread = Guest(**{key: getattr(shared, key) for key in shared.__struct_fields__} | {"nids": (0, 0, 1, 1)})
    alone_s = LOCAL_LATENCY_NS / MLP * 1e8 / 1e9 / 4
    assert run_times(scenario(spread), "kernel")["web"] > 1.3 * alone_s
    assert (run_times(scenario(spread), "vmplace")["web"] < 1.15 * alone_s) == is_local


KEPT = Path(__file__).parents[3] / "bench/results/demo.json"


def test_what_the_agent_reaches_in_the_emulated_host_is_forecast_for_each_guest() -> None:
    """By the agent's own loop in virtual time; the meter's model of memory is another program.

    What it reached is that of the demo's kept run.
    """
    kept = json.loads(KEPT.read_text())["demo"]["managers"]["vmplace"]["guests"]
    measured = {name: guest["emulated_run_time_s"] for name, guest in kept.items()}
    restart = read_scenario("restart")
    forecast = forecast_run_times(restart, read_topology(restart.topology), "vmplace", {})
    assert forecast == pytest.approx(measured, rel=0.10)


def test_a_second_guest_on_the_same_cpus_halves_the_time_of_both() -> None:
    busy = Touch(vcpus="0-1", ranges=("0+64",), order="sequential")
    alone = run_times(scenario(guest(busy)))["web"]
    shared = run_times(scenario(guest(busy), guest(busy, name="db")))
    assert shared["web"] == pytest.approx(2 * alone, rel=0.1)


def test_a_burst_fetches_each_line_of_its_page_once() -> None:
    # 16 draws out of 64 lines: 64 (1 - (63/64)^16) = 14.26 different ones.
    burst = guest(Touch(vcpus="0", ranges=("0+64",), burst=16, write_percent=20))
    assert misses_per_touch(burst) == pytest.approx(14.26 / 16, rel=1e-3)
    assert dirty_share(burst) == pytest.approx(1 - 0.8 ** (16 / 14.26), rel=1e-3)
    assert misses_per_touch(guest(STREAM)) == 1


def test_a_zipf_pattern_goes_to_the_start_of_its_ranges_wherever_that_is() -> None:
    # The first MiB of the range, on node 1, gets most of the touches of a vCPU on node 0.
    hot = Touch(vcpus="0", ranges=("32+32",), order="zipf")
    cold = Touch(vcpus="1", ranges=("0+64",), order="sequential", rate=1.0)
    one = guest(hot, cold)
    placed = replace_start(one, (1, 0))
    assert run_times(scenario(placed))["web"] > 1.2 * run_times(scenario(one))["web"]


def replace_start(one: Guest, nids: tuple[int, ...]) -> Guest:
    values = {field: getattr(one, field) for field in one.__struct_fields__}
    return Guest(**values | {"start_nids": nids})


def test_numad_leaves_small_and_idle_guests() -> None:
    web0 = read_scenario("wrong-node").guests[0]
    assert numad_places(web0, {"web0": 0.6})
    assert not numad_places(web0, {"web0": 0.4})
    assert not numad_places(guest(STREAM), {"web": 1.0})


def test_what_a_program_does_is_not_forecast() -> None:
    assert can_forecast(read_scenario("wrong-node"))
    assert not can_forecast(read_scenario("stress-ng"))
    assert not can_forecast(read_scenario("phases"))


def test_each_manager_has_a_model() -> None:
    assert set(POLICY_OF) == {"none", "numad", "kernel", "interleave", "vmplace"}
