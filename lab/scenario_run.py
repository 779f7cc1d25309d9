"""How is a scenario run under each manager, so that the figures can be compared?

Each manager gets a host restored from the same snapshot, bit by bit the same start (scenario_prepare.py), and
is watched through the same steps (scenario_observe.py).  One that breaks is reported as a failed expectation.
Where the machine is too slow for the guests to do their work, nothing is judged: that is the verdict.
"""

import platform
import time
from collections.abc import Sequence

import vmplace
from lab.errors import LabError, TooSlowError
from lab.kernel import chosen_flavour
from lab.progress import Progress
from lab.scenario import ManagerName, Scenario
from lab.scenario_expect import certain, failed_expectations
from lab.scenario_judge import judged
from lab.scenario_managers import KERNEL_OF, MANAGERS
from lab.scenario_observe import SharedStart, observe
from lab.scenario_prepare import Stage, prepare_stage
from lab.scenario_result import ManagerResult, ScenarioResult
from vmplace.errors import VmplaceError

MUCH = 0.3
"""Of the machine: with more of it others', a claim that does not hold is not held against a manager."""


def run_scenario(scenario: Scenario, managers: Sequence[ManagerName], progress: Progress) -> ScenarioResult:
    """Run the scenario under each manager.

    Those that come to rest come first, as the others get no less time on a slow machine; the control comes
    last, as it waits as long as the longest of all.
    Raises TooSlowError where the machine was too slow for the first one already.
    """
    run = _ScenarioRun(scenario, progress)
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
            self._broken[name] = f"{err} ({err.hint})" if err.hint else str(err)
            self._progress.note(f"{name}: {self._broken[name]}")
            return
        self._results[name] = judged(self._scenario, stage.topology, seen, time.monotonic() - started)
        _tell(self._progress, name, self._results[name])

    def _stage(self, name: ManagerName) -> Stage:
        flavour = KERNEL_OF.get(name, chosen_flavour())
        if flavour not in self._stages:
            self._stages[flavour] = prepare_stage(self._scenario, self._progress, flavour)
        return self._stages[flavour]

    def result(self, managers: Sequence[ManagerName], too_slow: TooSlowError | None) -> ScenarioResult:
        """Return all of it, the managers in the order in which they were asked for."""
        if not self._results:
            raise too_slow or LabError("no manager came to an end", hint="; ".join(self._broken.values()))
        results = {name: self._results[name] for name in managers if name in self._results}
        failures = [f"{name}: the run broke off: {why}" for name, why in self._broken.items()]
        failed, undecided = ((), None) if too_slow else decided(self._scenario, results)
        stage = next(iter(self._stages.values()))
        return ScenarioResult(
            scenario=self._scenario.name,
            topology=self._scenario.topology,
            nids=stage.topology.nids,
            managers=results,
            failed_expectations=() if too_slow else (*failures, *failed),
            too_slow=str(too_slow) if too_slow else undecided,
            speed=self._start.speed,
            seed=self._scenario.seed,
            versions=_versions(stage),
        )


def decided(
    scenario: Scenario, results: dict[ManagerName, ManagerResult]
) -> tuple[tuple[str, ...], str | None]:
    """Return the expectations that failed, and what is left undecided as others used much of the machine.

    Managers run one after the other, and what others do changes meanwhile: a claim that holds all the same
    holds, one that does not may be their doing.  Lost memory is lost on any machine.
    """
    missed = failed_expectations(scenario, results)
    shares = (share for result in results.values() for share in result.machine_share.values())
    others = 1 - min(shares, default=1.0)
    if not missed or others <= MUCH:
        return missed, None
    lost = failed_expectations(certain(scenario), results)
    left = "; ".join(sentence for sentence in missed if sentence not in lost)
    why = f"this machine is too slow to judge: others used up to {others:.0%} of it; undecided: {left}"
    return lost, why if left else None


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
