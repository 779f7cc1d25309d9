"""Which figures follow from what was seen of a manager?"""

from dataclasses import replace
from typing import Any

import pytest

from lab.scenario import read_scenario
from lab.scenario_cost import Cost
from lab.scenario_figures import ManagerFigures
from lab.scenario_judge import Observed, judged
from lab.scenario_meter import WindowSet
from lab.scenario_result import WORK_TOUCHES, ManagerResult
from lab.topology import read_topology
from tests.unit.lab.test_scenario_windows import window

FIELDS: dict[str, Any] = {
    "cpu_loads": {},
    "vmstat": ({}, {}),
    "active_s": None,
    "figures": ManagerFigures(),
    "vcpu_cpus": {},
    "verified": {},
    "rates": {},
    "speed": 1.0,
    "cost": Cost(),
    "shares": {},
    "step_s": {},
    "versions": {},
}


def result(before: WindowSet, after: WindowSet, emulated: WindowSet | None = None) -> ManagerResult:
    """Return the figures of a manager of which these windows were seen."""
    scenario = read_scenario("one-guest")
    fetches = {1: window().guests[1]}
    sets = [
        one and replace(one, windows=tuple(replace(seen, fetches=fetches) for seen in one.windows))
        for one in (before, after, emulated)
    ]
    seen = Observed("none", *sets, **FIELDS)  # type: ignore[arg-type]
    return judged(scenario, read_topology(scenario.topology), seen, 1.0)


def test_windows_that_were_taken_again_count_before_and_after():
    three = (window(),) * 3
    assert result(WindowSet(three, retakes=2), WindowSet(three, retakes=1)).retakes == 3


def test_an_emulated_run_time_is_the_median_of_its_windows():
    three = WindowSet((window(),) * 3)
    emulated = WindowSet(tuple(replace(window(work=100), elapsed_s={1: s}) for s in (1.0, 9.0, 2.0)))
    guest = result(three, three, emulated).guests["small"]
    assert guest.emulated_run_time_s == pytest.approx(2.0 * WORK_TOUCHES / 100)
    assert guest.emulated_run_time_spread_s == pytest.approx(8.0 * WORK_TOUCHES / 100)
