"""The log of scenario runs keeps what each run wrote, and the page shows ratios of the same run."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import scenario_runs
from bench.scenario_runs import fewest, names, run_once
from bench.scenario_runs_page import rendered


def guest(took: float | None, forecast: float | None, bad_pages: int = 0) -> dict[str, Any]:
    return {"emulated_run_time_s": took, "forecast_run_time_s": forecast, "bad_pages": bad_pages}


def manager(took: float | None, guests: dict[str, Any], share: float = 1.0) -> dict[str, Any]:
    whole = guest(took, None) | {"guests": guests, "machine_share": {"acts": share}}
    return {key: value for key, value in whole.items() if key != "bad_pages"}


RESULT = {
    "managers": {
        "none": manager(6.0, {"a": guest(6.0, 5.4), "b": guest(6.0, 6.0)}, 0.75),
        "vmplace": manager(3.0, {"a": guest(2.0, 2.5, 1), "b": guest(4.5, 4.5, 2)}),
    },
    "too_slow": "",
    "failed_expectations": ["vmplace: a is slow"],
    "undecided": [],
    "versions": {"kernel": "kernel-1"},
}


def kept_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: dict[str, Any], code: int
) -> dict[str, Any]:
    """Run a program in the place of vmplace-lab that writes this result."""
    lab = tmp_path / "lab"
    lab.write_text(f"#!/bin/sh\ncat > \"$4\" <<'END'\n{json.dumps(result)}\nEND\nexit {code}\n")
    lab.chmod(0o755)
    monkeypatch.setattr(scenario_runs, "LAB", str(lab))
    return run_once("crowded-node", tmp_path / "out")


def test_a_run_is_kept_with_its_exit_code_and_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept = kept_run(tmp_path, monkeypatch, RESULT, 1)
    assert (kept["scenario"], kept["exit_code"], kept["others"], kept["kernel"]) == (
        "crowded-node", 1, 0.25, "kernel-1",
    )  # fmt: skip
    assert kept["managers"]["vmplace"] == {
        "emulated_s": 3.0,
        "forecast_s": None,
        "bad_pages": 3,
        "guests": {"a": {"emulated_s": 2.0, "forecast_s": 2.5}, "b": {"emulated_s": 4.5, "forecast_s": 4.5}},
    }


def test_a_run_that_wrote_nothing_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scenario_runs, "LAB", "/bin/false")
    kept = run_once("busy", tmp_path)
    assert kept["exit_code"] == 1 and "managers" not in kept
    assert "| busy | " in "\n".join(rendered({"runs": [kept]}))


def test_ratios_are_of_the_same_run_and_forecasts_of_each_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = kept_run(tmp_path, monkeypatch, RESULT, 1)
    slower = json.loads(json.dumps(first).replace("6.0", "12.0").replace("3.0", "9.0"))
    lines = list(rendered({"runs": [first, slower]}))
    # Of none: 3/6 and 9/12; its guest a is off its forecast of 5.4 s by 0.6 in 6 and by 6.6 in 12.
    assert "| crowded-node | none | 2 | 9.00 | 6.00 to 12.00 | 0.62 | 55% |" in lines
    assert "| crowded-node | vmplace | 2 | 6.00 | 3.00 to 9.00 | - | 25% |" in lines
    assert "\nPages of guests found wrong in the full checks of all runs: 6." in lines
    assert sum("does not hold: vmplace: a is slow." in line for line in lines) == 2


def test_a_scenario_that_declares_no_work_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nothing = manager(None, {"a": guest(None, None)})
    idle = RESULT | {"managers": {"none": nothing, "vmplace": nothing}}
    lines = rendered({"runs": [kept_run(tmp_path, monkeypatch, idle, 0)]})
    assert "| crowded-node | none, vmplace | 1 | - | - | - | - |" in list(lines)


def test_further_runs_go_to_the_scenarios_that_have_the_fewest():
    had = [{"scenario": one, "managers": {"none": {}}} for one in names()[1:]]
    failed = {"scenario": names()[0]}
    assert fewest([*had, failed], len(names()) + 1) == [names()[0], *names()]
