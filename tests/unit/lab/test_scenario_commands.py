"""Which scenarios does the demo run, and with which exit code does it end?"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from bench.readme_results import KEPT
from lab import scenario_commands
from lab.errors import BrokenManagersError, LabError, TooSlowError
from lab.scenario_result import ScenarioResult

KEPT_RUN = msgspec.convert(json.loads(KEPT.read_text())["demo"], ScenarioResult)


def _raised(err: Exception | None) -> None:
    if err:
        raise err


def demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str, **of: Any
) -> tuple[int, dict[str, Any]]:
    """Run the demo; each scenario ends as ``of`` says.  Return exit code and managers by scenario."""
    asked: dict[str, Any] = {}

    def run(name: str, managers: Any) -> ScenarioResult:
        asked[name] = tuple(managers)
        ending = of.get(name, {})
        if isinstance(ending, Exception):
            raise ending
        return msgspec.structs.replace(KEPT_RUN, **ending)

    monkeypatch.setattr(scenario_commands, "_run", run)
    monkeypatch.setattr(scenario_commands, "_draw", lambda *_: ())
    monkeypatch.setattr(scenario_commands, "await_free_machine", lambda _: _raised(of.get("others")))
    ended = CliRunner().invoke(scenario_commands.demo, ["--out", str(tmp_path), *words])
    return ended.exit_code, asked


def test_the_demo_tells_both_stories_or_the_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    few = ("none", "kernel", "vmplace")
    assert demo(tmp_path, monkeypatch) == (0, {"restart": few, "consolidated": few})
    assert demo(tmp_path, monkeypatch, "--story", "consolidated")[1] == {"consolidated": few}
    assert demo(tmp_path, monkeypatch, "--story", "teapot")[0] == 2
    assert demo(tmp_path, monkeypatch, "--story", "busy") == (2, {})
    assert set(demo(tmp_path, monkeypatch, "--full", "--story", "busy")[1]) == {"busy"}
    assert set(demo(tmp_path, monkeypatch, "--full")[1]) == {"restart", "consolidated", "busy"}
    assert (tmp_path / "result.json").exists() and (tmp_path / "consolidated.json").exists()


def test_one_that_is_too_slow_does_not_keep_the_others_from_being_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    slow = {"restart": TooSlowError("no guest answered")}
    code, asked = demo(tmp_path, monkeypatch, "--full", **slow)
    assert code == TooSlowError.exit_code and "busy" in asked
    assert demo(tmp_path, monkeypatch, "--full", **slow, busy={"failed_expectations": ("slower",)})[0] == 1
    assert demo(tmp_path, monkeypatch, restart={"too_slow": "others"})[0] == TooSlowError.exit_code


def test_a_lab_that_cannot_be_built_is_no_verdict_and_hides_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broken = LabError("no space left", hint="free some")
    assert demo(tmp_path, monkeypatch, consolidated=broken)[0] == LabError.exit_code == 6
    # The other story needs the same lab.
    code, asked = demo(tmp_path, monkeypatch, restart=broken)
    assert code == 6 and set(asked) == {"restart"}
    failed = {"failed_expectations": ("slower",)}
    assert demo(tmp_path, monkeypatch, restart=failed, consolidated=broken)[0] == 1
    assert demo(tmp_path, monkeypatch, restart=BrokenManagersError("all of them"))[0] == 1


def test_beside_others_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code, asked = demo(tmp_path, monkeypatch, others=TooSlowError("others use 100% of it"))
    assert (code, asked) == (TooSlowError.exit_code, {})
