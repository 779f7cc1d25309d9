"""Did what must come out come out?  Pure: expectations and figures in, sentences about failures out."""

from collections.abc import Iterator

from lab.scenario import Expectation, ManagerName, Scenario
from lab.scenario_result import GuestResult, ManagerResult


def failed_expectations(scenario: Scenario, managers: dict[ManagerName, ManagerResult]) -> tuple[str, ...]:
    """Return a sentence for each expectation that failed; managers that did not run are not judged."""
    return tuple(
        sentence
        for expectation in scenario.expect
        for name in expectation.managers
        if name in managers
        for sentence in _failures(expectation, name, managers)
    )


def _failures(
    expectation: Expectation, name: ManagerName, managers: dict[ManagerName, ManagerResult]
) -> Iterator[str]:
    result = managers[name]
    limit = expectation.host_mc_imbalance_after_max
    yield from _above(f"{name}: MC imbalance of all guests", result.mc_imbalance_after, limit)
    limit = expectation.longest_move_call_ms_max
    if limit is not None and result.moved_bytes:
        yield from _above(f"{name}: longest move call (ms)", result.longest_move_call_ms, limit)
    for rival in expectation.fastest_of:
        if rival in managers:
            theirs = managers[rival].emulated_run_time_s
            yield from _slower(
                expectation.tolerance, f"{name}: all guests", result.emulated_run_time_s, (rival, theirs)
            )
    yield from _far_from_forecast(expectation.forecast_within, name, result)
    limit = expectation.cost_share_max
    yield from _above(f"{name}: share of the guests' work that it costs", result.cost_share, limit)
    if expectation.compare == "host_mc_imbalance":
        yield from _more_uneven(expectation, name, managers)
        return
    for guest_name in expectation.guests or tuple(result.guests):
        guest = result.guests[guest_name]
        yield from _guest_failures(expectation, f"{name}: {guest_name}", guest)
        for rival in expectation.as_good_as:
            if rival in managers:
                other = managers[rival].guests[guest_name]
                yield from _worse(expectation, f"{name}: {guest_name}", guest, (rival, other))


def _guest_failures(expectation: Expectation, who: str, guest: GuestResult) -> Iterator[str]:
    yield from _above(f"{who}: LAR before", guest.lar_before, expectation.lar_before_max)
    yield from _below(f"{who}: LAR after", guest.lar_after, expectation.lar_after_min)
    limit = expectation.fetch_lar_before_max
    yield from _above(f"{who}: LAR of code before", guest.fetch_lar_before, limit)
    yield from _below(f"{who}: LAR of code after", guest.fetch_lar_after, expectation.fetch_lar_after_min)
    yield from _above(f"{who}: MC imbalance", guest.mc_imbalance_after, expectation.mc_imbalance_after_max)
    yield from _far_from_declared(expectation.declared_lines_within, who, guest)
    if expectation.intact is not None and guest.intact != expectation.intact:
        yield f"{who}: memory intact is {guest.intact}, expected {expectation.intact}"


def _above(what: str, value: float | None, limit: float | None) -> Iterator[str]:
    if limit is not None and (value is None or value > limit):
        yield f"{what} is {_show(value)}, expected at most {limit:g}"


def _below(what: str, value: float | None, limit: float | None) -> Iterator[str]:
    if limit is not None and (value is None or value < limit):
        yield f"{what} is {_show(value)}, expected at least {limit:g}"


def _show(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _worse(
    expectation: Expectation, who: str, guest: GuestResult, rival: tuple[ManagerName, GuestResult]
) -> Iterator[str]:
    """Compare with a rival by what the expectation says."""
    rival_name, other = rival
    if expectation.compare == "run_time":
        pair = (guest.emulated_run_time_s, other.emulated_run_time_s)
        yield from _slower(expectation.tolerance, who, pair[0], (rival_name, pair[1]))
        return
    if expectation.compare == "lar":
        ours, theirs, sign = guest.lar_after, other.lar_after, 1
    else:
        ours, theirs, sign = guest.mc_imbalance_after, other.mc_imbalance_after, -1
    if theirs is not None and (ours is None or sign * (theirs - ours) > expectation.tolerance):
        yield f"{who}: {expectation.compare} after is {_show(ours)}, {rival_name} reached {_show(theirs)}"


def _more_uneven(
    expectation: Expectation, name: ManagerName, managers: dict[ManagerName, ManagerResult]
) -> Iterator[str]:
    """Compare the load of the host's memory controllers under all guests with that under rivals."""
    ours = managers[name].mc_imbalance_after
    for rival in expectation.as_good_as:
        theirs = managers[rival].mc_imbalance_after if rival in managers else None
        if theirs is not None and (ours is None or ours - theirs > expectation.tolerance):
            yield f"{name}: MC imbalance of all guests is {_show(ours)}, {rival} reached {_show(theirs)}"


def _far_from_declared(within: float | None, who: str, guest: GuestResult) -> Iterator[str]:
    seen, reported = guest.lines_per_touch, guest.declared_lines_per_touch
    if within is not None and (seen is None or reported is None or abs(seen - reported) > within * reported):
        yield f"{who}: the meter saw {_show(seen)} lines per touch, {_show(reported)} follow from its pattern"


def _far_from_forecast(within: float | None, name: str, result: ManagerResult) -> Iterator[str]:
    seen, reported = result.emulated_run_time_s, result.forecast_run_time_s
    if within is not None and (seen is None or reported is None or abs(reported - seen) > within * seen):
        yield f"{name}: emulated run time is {_show(seen)} s, the simulator says {_show(reported)} s"


def _slower(
    tolerance: float, who: str, ours: float | None, rival: tuple[ManagerName, float | None]
) -> Iterator[str]:
    rival_name, theirs = rival
    most = None if theirs is None else theirs * (1 + tolerance)
    if most is not None and (ours is None or ours > most):
        claim = f"{_show(most)} s at most was claimed"
        yield f"{who}: emulated run time is {_show(ours)} s, {rival_name} took {_show(theirs)} s: {claim}"
