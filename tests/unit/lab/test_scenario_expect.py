"""What must come out is judged: each rule with the figure on the wrong side of its limit."""

from typing import Any

import msgspec
import pytest

from lab.scenario import Expectation, Guest, Scenario
from lab.scenario_expect import failed_expectations
from lab.scenario_result import ManagerResult
from lab.workload import Workload
from tests.unit.lab.scenario_figures import manager


def failures(expectation: Expectation, **results: ManagerResult) -> tuple[str, ...]:
    guest = Guest(name="web", start_nids=(0, 0), memory_mib=64, workload=Workload())
    scenario = Scenario(name="try", topology="n2", guests=(guest,), expect=(expectation,))
    return failed_expectations(scenario, results)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"lar_before_max": 0.05}, "web: LAR before is 0.100, expected at most 0.05"),
        ({"lar_after_min": 0.995}, "web: LAR after is 0.990, expected at least 0.995"),
        ({"fetch_lar_before_max": 0.05}, "web: LAR of code before is 0.250, expected at most 0.05"),
        ({"fetch_lar_after_min": 0.9}, "web: LAR of code after is 0.800, expected at least 0.9"),
        ({"mc_imbalance_after_max": 0.05}, "web: MC imbalance is 0.100, expected at most 0.05"),
        ({"host_mc_imbalance_after_max": 0.15}, "MC imbalance of all guests is 0.200, expected at most 0.15"),
        ({"longest_move_call_ms_max": 20.0}, "longest move call (ms) is 25.000, expected at most 20"),
        ({"intact": False}, "memory intact is True, expected False"),
    ],
)
def test_a_figure_beyond_its_limit_is_reported(limit: dict[str, Any], said: str) -> None:
    (sentence,) = failures(Expectation(managers=("vmplace",), **limit), vmplace=manager())
    assert said in sentence


def test_figures_within_their_limits_are_silent() -> None:
    expectation = Expectation(managers=("vmplace",), lar_after_min=0.95, lar_before_max=0.3, intact=True)
    assert failures(expectation, vmplace=manager()) == ()


def test_an_unknown_figure_is_not_within_a_limit() -> None:
    expectation = Expectation(managers=("vmplace",), lar_after_min=0.95)
    assert "unknown" in failures(expectation, vmplace=manager(lar_after=None))[0]


def test_a_manager_that_did_not_run_is_not_judged() -> None:
    assert failures(Expectation(managers=("numad",), lar_after_min=1.0), vmplace=manager()) == ()


def test_a_rival_with_a_higher_lar_is_reported() -> None:
    expectation = Expectation(managers=("vmplace",), as_good_as=("kernel",))
    (sentence,) = failures(expectation, vmplace=manager(lar_after=0.9), kernel=manager())
    assert "kernel reached 0.990" in sentence


def test_a_spanning_guest_is_compared_by_imbalance_where_that_is_reported() -> None:
    expectation = Expectation(managers=("vmplace",), as_good_as=("numad",), compare="mc_imbalance")
    ours = manager(mc_imbalance_after=1.0, lar_after=0.2)
    (sentence,) = failures(expectation, vmplace=ours, numad=manager())
    assert "mc_imbalance after is 1.000, numad reached 0.100" in sentence


def timed(seconds: float | None, forecast_s: float | None = None) -> ManagerResult:
    return msgspec.structs.replace(
        manager(emulated_run_time_s=seconds), emulated_run_time_s=seconds, forecast_run_time_s=forecast_s
    )


@pytest.mark.parametrize(("ours", "count"), [(4.0, 0), (4.05, 0), (4.2, 2), (None, 2)])
def test_a_slower_run_than_a_rivals_is_reported(ours: float | None, count: int) -> None:
    expectation = Expectation(
        managers=("vmplace",), fastest_of=("numad",), as_good_as=("numad",), compare="run_time"
    )
    reported = failures(expectation, vmplace=timed(ours), numad=timed(4.0))
    assert len(reported) == count
    assert all("emulated run time" in sentence and "numad took 4.000 s" in sentence for sentence in reported)


@pytest.mark.parametrize(
    ("seen", "reported", "count"),
    [(4.0, 4.5, 0), (4.0, 3.5, 0), (4.0, 4.7, 1), (4.0, 3.3, 1), (None, 4.0, 1), (4.0, None, 1)],
)
def test_a_forecast_that_did_not_come_true_is_reported(
    seen: float | None, reported: float | None, count: int
) -> None:
    expectation = Expectation(managers=("vmplace",), forecast_within=0.15)
    assert len(failures(expectation, vmplace=timed(seen, reported))) == count


def test_a_rival_without_a_run_time_is_no_rival() -> None:
    expectation = Expectation(managers=("vmplace",), fastest_of=("numad",))
    assert failures(expectation, vmplace=timed(4.0), numad=timed(None)) == ()


def test_the_hosts_imbalance_is_compared_with_a_rivals() -> None:
    better = Expectation(
        managers=("vmplace",), as_good_as=("kernel",), compare="host_mc_imbalance", tolerance=-0.1
    )
    ours, theirs = manager(), msgspec.structs.replace(manager(), mc_imbalance_after=0.25)
    reported = failures(better, vmplace=ours, kernel=theirs)
    assert reported == ("vmplace: MC imbalance of all guests is 0.200, kernel reached 0.250",)
    theirs = msgspec.structs.replace(theirs, mc_imbalance_after=0.31)
    assert failures(better, vmplace=ours, kernel=theirs) == ()


def test_lines_that_do_not_follow_from_the_pattern_are_reported() -> None:
    near = Expectation(managers=("vmplace",), declared_lines_within=0.05)
    seen = {"lines_per_touch": 1.06, "declared_lines_per_touch": 1.0}
    assert failures(near, vmplace=manager(**seen)) != ()
    assert failures(near, vmplace=manager(**seen | {"lines_per_touch": 1.04})) == ()


def test_a_manager_that_costs_too_much_is_reported() -> None:
    cheap = Expectation(managers=("vmplace",), cost_share_max=0.05)
    assert failures(cheap, vmplace=msgspec.structs.replace(manager(), cost_share=0.06))
    assert not failures(cheap, vmplace=msgspec.structs.replace(manager(), cost_share=0.04))
