"""What does it mean that something in the emulated host took too long?"""

from typing import Any
from unittest.mock import MagicMock

import pytest

from lab import scenario_observe
from lab.errors import GoneError, LabError, LabTimeoutError, TooSlowError
from lab.machine_share import MachineTimes
from lab.scenario_blame import too_slow_for
from lab.scenario_meter import WindowSet
from lab.scenario_observe import SharedStart
from lab.scenario_result import VERIFIED_COPIES

TIMEOUT = LabTimeoutError("in the emulated host: virsh list took over 120 s")


def test_on_a_machine_that_was_mostly_others_nothing_is_judged():
    verdict = too_slow_for(TIMEOUT, 0.4)
    assert isinstance(verdict, TooSlowError)
    assert "others used 60% of it" in str(verdict) and "virsh list took over 120 s" in str(verdict)


def test_on_a_free_machine_it_hangs():
    assert too_slow_for(TIMEOUT, 0.9) is TIMEOUT


def stage_of(*guests: str) -> Any:
    """Return a stage of a scenario with these guests."""
    stage = MagicMock()
    stage.scenario.guests = [MagicMock() for _ in guests]
    for one, name in zip(stage.scenario.guests, guests, strict=True):
        one.name = name
    return stage


def machine_had(monkeypatch: pytest.MonkeyPatch, *looks: tuple[float, float]) -> None:
    """Let each look find so many CPU seconds, all of them used, and so many by the emulator."""
    times = iter([MachineTimes(passed, passed, own) for passed, own in looks])
    monkeypatch.setattr(scenario_observe, "read_machine_times", lambda _: next(times))


def hosts_boot(monkeypatch: pytest.MonkeyPatch, killed: str | None = None) -> None:
    """Let hosts boot, and run on, or be killed by this signal."""
    boot = MagicMock()
    boot.return_value.__enter__.return_value.killed_by.return_value = killed
    monkeypatch.setattr(scenario_observe, "boot_host", boot)


@pytest.mark.parametrize(("own_s", "is_slow"), [(95.0, False), (60.0, True)])
def test_what_others_used_before_a_step_does_not_excuse_that_it_hangs(
    monkeypatch: pytest.MonkeyPatch, own_s: float, is_slow: bool
):
    def hangs(run: scenario_observe._Run) -> None:
        run._is_managed = True
        with run._step("starts"):
            raise TIMEOUT

    # Nine tenths of the time until the step were others'; or, second row, none were, but much of the step.
    earlier = (900.0, 900.0 if is_slow else 0.0)
    machine_had(monkeypatch, (0.0, 0.0), earlier, (1000.0, earlier[1] + own_s))
    hosts_boot(monkeypatch)
    monkeypatch.setattr(scenario_observe._Run, "observed", hangs)
    with pytest.raises(LabError) as caught:
        scenario_observe.observe(MagicMock(), "vmplace", SharedStart(), MagicMock())
    assert isinstance(caught.value, TooSlowError) == is_slow


def ended_step(monkeypatch: pytest.MonkeyPatch, manager: Any, *, share: float, managed: bool) -> LabError:
    """Return the error of a step in which no guest answered, and others left this share of the machine."""
    machine_had(monkeypatch, (0.0, 0.0), (0.0, 0.0), (100.0, 100.0 * share))
    run = scenario_observe._Run(MagicMock(), manager, SharedStart(), MagicMock(), MagicMock())
    run._is_managed = managed
    with pytest.raises(LabError) as caught, run._step("acts"):
        raise TooSlowError("no guest answered in 180 s")
    return caught.value


def test_guests_that_keep_silent_under_a_manager_on_a_free_machine_are_its_failure(
    monkeypatch: pytest.MonkeyPatch,
):
    err = ended_step(monkeypatch, "vmplace", share=0.95, managed=True)
    assert not isinstance(err, TooSlowError)
    assert str(err) == "others left 95% of the machine, and under vmplace no guest answered in 180 s"


@pytest.mark.parametrize(("copies", "is_asked"), [(0, False), (3, True)])
def test_guests_verify_their_memory_while_there_are_copies(
    monkeypatch: pytest.MonkeyPatch, copies: int, is_asked: bool
):
    machine_had(monkeypatch, *[(0.0, 0.0)] * 4)
    monkeypatch.setattr(scenario_observe, "read_progress", lambda _: (100, copies))
    monkeypatch.setattr(scenario_observe, "ask_patiently", lambda *_: {"web": {}})
    run = scenario_observe._Run(stage_of("web", "shop"), "vmplace", SharedStart(), MagicMock(), MagicMock())
    # "shop" kept silent.
    assert set(run._verify_copies()) == ({"web"} if is_asked else {"web", "shop"})
    assert (VERIFIED_COPIES in run._step_s) == is_asked


@pytest.mark.parametrize("manager", ["vmplace", "none"])
@pytest.mark.parametrize("managed", [False, True])
def test_what_the_lab_fails_at_before_a_manager_acts_is_no_failure_of_that_one(
    monkeypatch: pytest.MonkeyPatch, manager: Any, managed: bool
):
    def hangs(run: scenario_observe._Run) -> None:
        run._is_managed = managed
        raise LabError("web fell silent: no answer to 'speed 64'")

    machine_had(monkeypatch, (0.0, 0.0))
    hosts_boot(monkeypatch)
    monkeypatch.setattr(scenario_observe._Run, "observed", hangs)
    with pytest.raises(LabError, match="web fell silent") as caught:
        scenario_observe.observe(MagicMock(), manager, SharedStart(), MagicMock())
    assert isinstance(caught.value, TooSlowError) == (not managed or manager == "none")


@pytest.mark.parametrize(("killed", "is_slow"), [("SIGKILL", True), (None, False)])
def test_an_emulator_that_was_killed_is_no_failure_of_a_manager(
    monkeypatch: pytest.MonkeyPatch, killed: str | None, is_slow: bool
):
    def gone(run: scenario_observe._Run) -> None:
        run._is_managed = True
        raise GoneError("the guest agent closed the connection")

    machine_had(monkeypatch, (0.0, 0.0))
    hosts_boot(monkeypatch, killed)
    monkeypatch.setattr(scenario_observe._Run, "observed", gone)
    with pytest.raises(LabError) as caught:
        scenario_observe.observe(MagicMock(), "vmplace", SharedStart(), MagicMock())
    assert isinstance(caught.value, TooSlowError) == is_slow
    assert not killed or killed in str(caught.value)


@pytest.mark.parametrize(("manager", "names"), [("none", None), ("vmplace", {"web"})])
def test_a_guest_that_is_silent_at_the_end_is_a_managers_failure_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, manager: Any, names: set[str] | None
):
    machine_had(monkeypatch, *[(0.0, 0.0)] * 4)
    monkeypatch.setattr(scenario_observe, "ask_patiently", lambda *_: {"web": {}, "shop": {}})
    run = scenario_observe._Run(stage_of("web", "shop"), manager, SharedStart(), MagicMock(), MagicMock())
    run._is_managed = True
    if names is None:
        with pytest.raises(LabError, match="shop fell silent"):
            run._verified_by({"web"})
    else:
        # Without an answer its memory is not taken to be intact.
        assert set(run._verified_by({"web"})) == names


def test_a_step_that_is_taken_twice_was_as_free_as_at_its_worst(monkeypatch: pytest.MonkeyPatch):
    machine_had(monkeypatch, *[(0.0, 0.0)] * 2, (100.0, 40.0), (100.0, 40.0), (200.0, 140.0))
    run = scenario_observe._Run(stage_of("web"), "vmplace", SharedStart(), MagicMock(), MagicMock())
    for _ in range(2):
        with run._step("acts"):
            pass
    assert run._shares["acts"] == pytest.approx(0.4)


def test_windows_before_that_were_taken_again_count_once(monkeypatch: pytest.MonkeyPatch):
    machine_had(monkeypatch, *[(0.0, 0.0)] * 4)
    start = SharedStart(before=WindowSet((), retakes=3))
    run = scenario_observe._Run(stage_of("web"), "none", start, MagicMock(), MagicMock())
    assert run._windows_before().retakes == 0


def test_a_host_that_does_not_boot_is_no_failure_of_a_manager(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scenario_observe, "boot_host", MagicMock(side_effect=TIMEOUT))
    with pytest.raises(TooSlowError, match="no manager can be why"):
        scenario_observe.observe(MagicMock(), "vmplace", SharedStart(), MagicMock())


@pytest.mark.parametrize(("bad_pages", "is_slow"), [(0, True), (1, False), (None, False)])
def test_memory_that_was_lost_counts_though_the_machine_was_too_slow(
    monkeypatch: pytest.MonkeyPatch, bad_pages: int | None, is_slow: bool
):
    def gives_up(run: scenario_observe._Run) -> None:
        run._is_managed = True
        raise TooSlowError("vmplace had not come to rest")

    answer = {"event": "verified", "bad_pages": bad_pages, "wrong_calls": 0}
    machine_had(monkeypatch, (0.0, 0.0))
    hosts_boot(monkeypatch)
    answers = {"shop": answer | {"bad_pages": 0}} | ({} if bad_pages is None else {"web": answer})
    monkeypatch.setattr(scenario_observe, "ask_patiently", lambda *_: answers)
    monkeypatch.setattr(scenario_observe._Run, "observed", gives_up)
    with pytest.raises(LabError) as caught:
        scenario_observe.observe(stage_of("web", "shop"), "vmplace", SharedStart(), MagicMock())
    assert isinstance(caught.value, TooSlowError) == is_slow
    what = "fell silent" if bad_pages is None else "lost memory"
    assert is_slow or str(caught.value) == f"web {what} under vmplace"


@pytest.mark.parametrize(
    ("manager", "share", "managed"),
    [("vmplace", 0.6, True), ("vmplace", 0.95, False), ("none", 0.95, True)],
)
def test_else_they_are_the_machines_doing(
    monkeypatch: pytest.MonkeyPatch, manager: str, share: float, managed: bool
):
    assert isinstance(ended_step(monkeypatch, manager, share=share, managed=managed), TooSlowError)
