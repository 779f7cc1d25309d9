"""Which claims get a verdict on a machine that does other things, too?  Pure: figures in, sentences out.

A claim holds or fails only where the machine was free enough in the steps that its figures come from, under
each manager that it compares.  Else it is undecided, whichever way it came out: managers run one after the
other, and what others did may have hurt any of them.  Windows in which figures are taken are short beside the
time in which a manager acts, and count each by itself.  Memory that is lost is lost on any machine.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from lab.machine_share import FREE
from lab.scenario import Expectation, ManagerName, Scenario
from lab.scenario_expect import failed_expectations
from lab.scenario_result import (
    ACTS,
    COST_TURNS,
    EMULATED_WINDOW,
    WINDOWS_AFTER,
    WINDOWS_BEFORE,
    ManagerResult,
)

PLACED = (ACTS, WINDOWS_AFTER)
TIMED = (ACTS, EMULATED_WINDOW)
STEPS_OF: Mapping[str, tuple[str, ...]] = {
    "lar_before_max": (WINDOWS_BEFORE,),
    "fetch_lar_before_max": (WINDOWS_BEFORE,),
    "lar_after_min": PLACED,
    "fetch_lar_after_min": PLACED,
    "mc_imbalance_after_max": PLACED,
    "host_mc_imbalance_after_max": PLACED,
    "longest_move_call_ms_max": (ACTS,),
    "cost_share_max": (COST_TURNS,),
    "declared_lines_within": (WINDOWS_AFTER,),
    "forecast_within": TIMED,
    "intact": (),
}
"""The steps that the figures of each kind of claim come from; none: they are the same on any machine.

That holds for memory, too: a guest that does not answer while others do has lost it, or hangs.
"""
COMPARISONS = ("as_good_as", "fastest_of")
FIGURES = {"lar": "lar_after", "mc_imbalance": "mc_imbalance_after", "run_time": "emulated_run_time_s"}
"""By what ``compare`` says: which figure of a guest that is."""


@dataclass(frozen=True)
class Verdict:
    """What failed, what did not come out but is left undecided, and in a sentence why, if anything is."""

    failed: tuple[str, ...]
    undecided: tuple[str, ...]
    too_slow: str | None


@dataclass(frozen=True)
class _Claim:
    """One figure of one manager, alone or against one rival, and the steps that it comes from."""

    expectation: Expectation
    managers: tuple[ManagerName, ...]
    steps: tuple[str, ...]

    def lacks_figures(self, results: Mapping[ManagerName, ManagerResult]) -> bool:
        """Tell whether a rival has no figure to compare with: then nothing can be claimed."""
        rivals = [results[name] for name in self.managers[1:]]
        return any(figure is None for rival in rivals for figure in self._figures(rival))

    def _figures(self, rival: ManagerResult) -> Iterator[float | None]:
        if self.expectation.fastest_of:
            yield rival.emulated_run_time_s
        elif self.expectation.compare == "host_mc_imbalance":
            yield rival.mc_imbalance_after
        else:
            key = FIGURES[self.expectation.compare]
            for name in self.expectation.guests or tuple(rival.guests):
                yield getattr(rival.guests[name], key)


@dataclass
class _Open:
    """Claims without a verdict so far: how many, what of them did not come out, and where others were."""

    count: int = 0
    missed: list[str] = field(default_factory=list)
    busiest: tuple[float, ManagerName] = (1.0, "none")

    def add(
        self, claim: _Claim, missed: tuple[str, ...], results: Mapping[ManagerName, ManagerResult]
    ) -> None:
        self.count += 1
        self.missed += missed
        left = min((free_share(results[name], claim.steps), name) for name in claim.managers)
        self.busiest = min(self.busiest, left)

    @property
    def reason(self) -> str | None:
        if not self.count:
            return None
        left, name = self.busiest
        why = (
            f"others used up to {1 - left:.0%} of it"
            if left < FREE
            else "there are no figures to compare with"
        )
        others = f"this machine is too slow to judge: {why} under {name}"
        missed = "; ".join(self.missed) or "nothing"
        return f"{others}; claims undecided: {self.count}, not as expected of them: {missed}"


def verdict(scenario: Scenario, results: dict[ManagerName, ManagerResult]) -> Verdict:
    """Return what failed, and what is undecided; managers that did not run are not judged."""
    failed: list[str] = []
    left = _Open()
    for claim in _claims(scenario, results):
        alone = msgspec.structs.replace(scenario, expect=(claim.expectation,))
        missed = failed_expectations(alone, results)
        is_free = all(free_share(results[name], claim.steps) >= FREE for name in claim.managers)
        if is_free and (missed or not claim.lacks_figures(results)):
            failed += missed
        else:
            left.add(claim, missed, results)
    return Verdict(tuple(failed), tuple(left.missed), left.reason)


def skipped_claims(scenario: Scenario, results: Mapping[ManagerName, ManagerResult]) -> dict[str, int]:
    """Return how many claims compare with a manager that has no result, by its name."""
    ran = [one for one in scenario.expect for name in one.managers if name in results]
    rivals = [rival for one in ran for rival in (*one.as_good_as, *one.fastest_of) if rival not in results]
    return dict(Counter(rivals))


def free_share(result: ManagerResult, steps: tuple[str, ...]) -> float:
    """Return what others left of the machine in that of these steps in which they left least.

    A step that was not taken does not count.
    """
    return min((result.machine_share[step] for step in steps if step in result.machine_share), default=1.0)


def _claims(scenario: Scenario, results: Mapping[ManagerName, ManagerResult]) -> Iterator[_Claim]:
    for expectation in scenario.expect:
        for name in expectation.managers:
            if name in results:
                yield from _limits(expectation, name)
                yield from _comparisons(expectation, name, results)


def _limits(expectation: Expectation, name: ManagerName) -> Iterator[_Claim]:
    """Yield the claims about one manager alone."""
    bare = Expectation(managers=(name,), guests=expectation.guests)
    for key, steps in STEPS_OF.items():
        if (limit := getattr(expectation, key)) is not None:
            yield _Claim(msgspec.structs.replace(bare, **{key: limit}), (name,), steps)


def _comparisons(
    expectation: Expectation, name: ManagerName, results: Mapping[ManagerName, ManagerResult]
) -> Iterator[_Claim]:
    """Yield the claims about one manager and a rival that ran."""
    bare = Expectation(
        managers=(name,),
        guests=expectation.guests,
        compare=expectation.compare,
        tolerance=expectation.tolerance,
    )
    for key in COMPARISONS:
        is_timed = key == "fastest_of" or expectation.compare == "run_time"
        for rival in getattr(expectation, key):
            if rival in results:
                one = msgspec.structs.replace(bare, **{key: (rival,)})
                yield _Claim(one, (name, rival), TIMED if is_timed else PLACED)
