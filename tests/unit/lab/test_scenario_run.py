"""What is left of a run in which the machine became too slow?"""

from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from lab import scenario_prepare, scenario_run
from lab.errors import LabError, NothingJudgedError, TooSlowError
from lab.progress import Progress
from lab.scenario import ManagerName, read_scenario
from lab.scenario_result import ManagerResult
from lab.scenario_run import run_scenario
from tests.unit.lab.test_scenario_verdict import CLAIM, LOST, scenario, seen

SLOW = TooSlowError("no guest answered in 180 s")
CRASHED = LabError("the agent died")


def run(
    monkeypatch: pytest.MonkeyPatch, unbuilt: str | None = None, **outcomes: ManagerResult | LabError
) -> Any:
    """Run managers that end so, in an emulated host that is none; flavour ``unbuilt`` cannot be built."""

    def observed(stage: Any, name: ManagerName, *_: Any) -> ManagerResult:
        outcome = outcomes[name]
        if isinstance(outcome, LabError):
            raise outcome
        return outcome

    stage = MagicMock(**{"topology.nids": (0, 1)})

    def built(_progress: Any, flavour: str) -> None:
        if flavour == unbuilt:
            raise LabError("no space left", hint="free some")

    monkeypatch.setattr(scenario_run, "build_all", built)
    monkeypatch.setattr(scenario_run, "prepare_stage", lambda *_: stage)
    monkeypatch.setattr(scenario_run, "_versions", lambda _: {})
    monkeypatch.setattr(scenario_run, "observe", observed)
    monkeypatch.setattr(scenario_run, "judged", lambda _scenario, _topology, one, _s: one)
    managers: Any = tuple(outcomes)
    return run_scenario(scenario(CLAIM), managers, Progress())


def test_lost_memory_is_a_failure_though_a_later_manager_was_too_slow(monkeypatch: pytest.MonkeyPatch):
    result = run(monkeypatch, vmplace=seen({"acts": 0.2}, intact=False), none=SLOW)
    assert result.failed_expectations == (LOST,) and "no guest answered" in result.too_slow


def test_so_is_a_manager_that_broke(monkeypatch: pytest.MonkeyPatch):
    result = run(monkeypatch, vmplace=seen({}), kernel=CRASHED, none=SLOW)
    assert result.failed_expectations == ("kernel: the run broke off: the agent died",)


def test_a_bad_placement_on_a_free_machine_is_a_failure_though_a_later_manager_was_too_slow(
    monkeypatch: pytest.MonkeyPatch,
):
    result = run(monkeypatch, vmplace=seen({}, lar=0.05), none=SLOW)
    assert "LAR after is 0.050" in result.failed_expectations[0]


def test_a_manager_that_broke_is_reported_though_no_figure_is_left(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(LabError) as caught:
        run(monkeypatch, vmplace=CRASHED, none=SLOW)
    assert not isinstance(caught.value, TooSlowError)
    assert "the agent died" in str(caught.value.hint) and "no guest answered" in str(caught.value.hint)


def test_a_machine_too_slow_for_the_first_manager_is_the_verdict(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(TooSlowError):
        run(monkeypatch, vmplace=SLOW, none=seen({}))


def test_what_cannot_be_built_is_an_error_with_its_cure_and_no_verdict(monkeypatch: pytest.MonkeyPatch):
    no_root = LabError("the lab needs root", hint="sudo")
    monkeypatch.setattr(scenario_run, "build_all", MagicMock(side_effect=no_root))
    with pytest.raises(LabError) as caught:
        run_scenario(read_scenario("one-guest"), ["vmplace"], Progress())
    assert caught.value is no_root


def test_what_a_later_manager_needs_is_built_before_the_first_one_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scenario_run, "KERNEL_OF", {"numad": "odd"})
    with pytest.raises(LabError, match="no space left") as caught:
        run(monkeypatch, unbuilt="odd", vmplace=CRASHED, numad=seen({}))
    assert caught.value.exit_code == 6


def test_the_cure_is_shown_beside_figures(monkeypatch: pytest.MonkeyPatch):
    killed = NothingJudgedError(LabError("SIGKILL ended the emulator", hint="see dmesg"))
    result = run(monkeypatch, vmplace=seen({}), none=killed)
    assert "no manager can be why: SIGKILL ended the emulator (see dmesg)" in result.too_slow


def test_a_host_that_does_not_come_up_twice_is_no_failure_of_a_manager(monkeypatch: pytest.MonkeyPatch):
    hangs = LabError("guest small did not come up in 900 s")
    for name, result in (("build_all", None), ("deployed_files", {})):
        monkeypatch.setattr(scenario_prepare, name, lambda *_, result=result: result)
    monkeypatch.setattr(scenario_run, "build_all", lambda *_: None)
    monkeypatch.setattr(scenario_prepare, "prepared_snapshot", MagicMock(side_effect=hangs))
    with pytest.raises(TooSlowError, match="did not come up"):
        run_scenario(read_scenario("one-guest"), ["vmplace"], Progress())


def test_what_is_undecided_is_kept(monkeypatch: pytest.MonkeyPatch):
    result = run(monkeypatch, vmplace=seen({"acts": 0.2}, lar=0.05))
    assert "LAR after is 0.050" in result.undecided[0] and result.failed_expectations == ()
    assert msgspec.json.decode(msgspec.json.encode(result))["undecided"]
