"""How is a scenario run under each manager, so that the figures can be compared?

Each manager gets a host restored from the same snapshot, bit by bit the same start (scenario_prepare.py), and
is watched through the same steps (scenario_observe.py).  One that breaks is reported as a failed expectation.
Where the machine is too slow for the guests to do their work, the run ends there; what is known by then is
judged all the same (scenario_verdict.py).
"""

import platform
import time
from collections.abc import Sequence

import vmplace
from lab.build import build_all
from lab.errors import BrokenManagersError, LabError, TooSlowError
from lab.kernel import chosen_flavour
from lab.progress import Progress
from lab.scenario import ManagerName, Scenario
from lab.scenario_judge import judged
from lab.scenario_managers import KERNEL_OF, MANAGERS
from lab.scenario_observe import SharedStart, observe
from lab.scenario_prepare import Stage, prepare_stage
from lab.scenario_result import ManagerResult, ScenarioResult
from lab.scenario_verdict import skipped_claims, verdict
from vmplace.errors import VmplaceError


def run_scenario(scenario: Scenario, managers: Sequence[ManagerName], progress: Progress) -> ScenarioResult:
    """Run the scenario under each manager.

    Those that come to rest come first, as the others get no less time on a slow machine; the control comes
    last, as it waits as long as the longest of all.
    Raises TooSlowError where the machine was too slow for the first one already.
    """
    run = _ScenarioRun(scenario, progress)
    run.build(managers)
    too_slow: TooSlowError | None = None
    try:
        for name in sorted(managers, key=lambda name: (name == "none", not MANAGERS[name].comes_to_rest)):
            run.add(name)
    except TooSlowError as err:
        progress.note(str(err))
        too_slow = err
    return run.result(managers, too_slow)


class _ScenarioRun:
    """The managers' runs so far."""

    def __init__(self, scenario: Scenario, progress: Progress) -> None:
        self._scenario, self._progress, self._start = scenario, progress, SharedStart()
        self._stages: dict[str, Stage] = {}
        self._results: dict[ManagerName, ManagerResult] = {}
        self._broken: dict[ManagerName, str] = {}

    def add(self, name: ManagerName) -> None:
        """Run one more; raises TooSlowError."""
        started = time.monotonic()
        stage = self._stage(name)
        try:
            seen = observe(stage, name, self._start, self._progress)
        except TooSlowError:
            raise
        except LabError as err:
            self._broken[name] = _with_cure(err)
            self._progress.note(f"{name}: {self._broken[name]}")
            return
        self._results[name] = judged(self._scenario, stage.topology, seen, time.monotonic() - started)
        _tell(self._progress, name, self._results[name])

    def build(self, managers: Sequence[ManagerName]) -> None:
        """Build what all of them need, before there is a result that an error could hide."""
        for flavour in dict.fromkeys(KERNEL_OF.get(name, chosen_flavour()) for name in managers):
            build_all(self._progress, flavour)

    def _stage(self, name: ManagerName) -> Stage:
        flavour = KERNEL_OF.get(name, chosen_flavour())
        if flavour not in self._stages:
            self._stages[flavour] = prepare_stage(self._scenario, self._progress, flavour)
        return self._stages[flavour]

    def result(self, managers: Sequence[ManagerName], too_slow: TooSlowError | None) -> ScenarioResult:
        """Return all of it, the managers in the order in which they were asked for."""
        failures = [f"{name}: the run broke off: {why}" for name, why in self._broken.items()]
        if not self._results:
            raise _no_figures(failures, too_slow)
        results = {name: self._results[name] for name in managers if name in self._results}
        found = verdict(self._scenario, results)
        slow = [_with_cure(too_slow)] if too_slow else []
        slow += [found.too_slow] if found.too_slow else []
        stage = next(iter(self._stages.values()))
        return ScenarioResult(
            scenario=self._scenario.name,
            topology=self._scenario.topology,
            nids=stage.topology.nids,
            managers=results,
            failed_expectations=(*failures, *found.failed),
            too_slow="; ".join(slow) or None,
            undecided=found.undecided,
            skipped=skipped_claims(self._scenario, results),
            speed=self._start.speed,
            seed=self._scenario.seed,
            versions=_versions(stage),
        )


def _with_cure(err: LabError) -> str:
    """Return what went wrong, with its cure if there is one."""
    return f"{err} ({err.hint})" if err.hint else str(err)


def _no_figures(failures: Sequence[str], too_slow: TooSlowError | None) -> LabError:
    """Return the error of a run without figures: one that broke is named, though others were too slow."""
    if too_slow and not failures:
        return too_slow
    reasons = (*failures, _with_cure(too_slow)) if too_slow else tuple(failures)
    return BrokenManagersError("no manager came to an end", hint="; ".join(reasons))


def _tell(progress: Progress, name: ManagerName, result: ManagerResult) -> None:
    ratios = ", ".join(
        f"{guest_name} {guest.lar_before:.2f}->{guest.lar_after:.2f}"
        for guest_name, guest in result.guests.items()
        if guest.lar_before is not None and guest.lar_after is not None
    )
    progress.note(f"{name}: LAR {ratios}")


def _versions(stage: Stage) -> dict[str, str]:
    artifacts = stage.artifacts
    return {
        "vmplace": vmplace.__version__,
        "python": platform.python_version(),
        "kernel": artifacts.kernel.parent.name,
        "root_file_system": artifacts.rootfs_image.parent.name,
        "toolbox": artifacts.toolbox.parent.name,
        "snapshot": stage.snapshot.name,
        "emulator": artifacts.qemu.parent.name,
    }


def check_managers(names: Sequence[str]) -> tuple[ManagerName, ...]:
    """Return the names as managers; raises VmplaceError for one that does not exist."""
    for name in names:
        if name not in MANAGERS:
            raise VmplaceError(f"no manager '{name}'", hint=f"known: {', '.join(MANAGERS)}")
    return tuple(name for name in MANAGERS if name in names)
