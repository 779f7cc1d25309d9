"""How is the log of scenario runs (scenario_runs.py) shown?  Times by scenario and manager."""

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Run = Mapping[str, Any]
OWN = "vmplace"


def rendered(kept: Run) -> Iterator[str]:
    """Yield the section's lines."""
    yield "## The lab's scenarios\n"
    yield (
        "By `make scenario-log`: each manager begins from the same guests. Times are emulated seconds, of\n"
        "all guests together: median, and spread of the runs. *Ratio*: vmplace's time by the manager's,\n"
        "run by run; below 1 it is shorter. *Off*: the most by which a guest's time was off its\n"
        "forecast, which is the simulator's. A dash: the scenario declares no work. Exit codes: 0 all\n"
        "claims hold, 1 one does not, 5 the machine was too busy to judge them (such runs count here,\n"
        "too), 124 the run hung. *Others* is the most that other processes used of the machine in a step.\n"
        "What has times is of the [meter's clock](meter.md#emulated-time) since 59a32c0d.\n"
    )
    yield "| scenario | manager | runs | emulated s | spread | ratio | off |\n|---|---|---|---|---|---|---|"
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in kept["runs"]:
        if run.get("managers"):
            by_name[run["scenario"]].append(run)
    for name, runs in sorted(by_name.items()):
        yield from _rows(name, runs)
    bad = sum(
        one["bad_pages"] for runs in by_name.values() for run in runs for one in run["managers"].values()
    )
    yield f"\nPages of guests found wrong in the full checks of all runs: {bad}."
    yield "\n| scenario | date, commit, kernel | load | others | exit code | took, s |"
    yield "|---|---|---|---|---|---|"
    yield from map(_run_row, kept["runs"])
    yield from _claims(kept["runs"])
    yield ""


def _rows(name: str, runs: Sequence[Run]) -> Iterator[str]:
    managers = list(dict.fromkeys(manager for run in runs for manager in run["managers"]))
    if all(one["emulated_s"] is None for run in runs for one in run["managers"].values()):
        yield f"| {name} | {', '.join(managers)} | {len(runs)} | - | - | - | - |"
        return
    for manager in managers:
        mine = [run for run in runs if manager in run["managers"]]
        known = [time for run in mine if (time := run["managers"][manager]["emulated_s"]) is not None]
        ratios = [one for one in (_ratio(run, manager) for run in mine) if one is not None]
        off = [one for run in mine for one in _off(run["managers"][manager])]
        yield (
            f"| {name} | {manager} | {len(mine)} | {_middle(known)} | {_spread(known)} | {_middle(ratios)} "
            f"| {f'{max(off):.0%}' if off else '-'} |"
        )


def _ratio(run: Run, manager: str) -> float | None:
    own, other = (run["managers"].get(one, {}).get("emulated_s") for one in (OWN, manager))
    return None if manager == OWN or own is None or other is None else own / other


def _off(manager: Run) -> list[float]:
    """Return by how much each guest's time was off its forecast."""
    times = [(one["emulated_s"], one["forecast_s"]) for one in manager["guests"].values()]
    return [abs(forecast / took - 1) for took, forecast in times if took and forecast]


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "-"


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else "-"


def _run_row(run: Run) -> str:
    commit, _, is_dirty = (run["commit"] or "unknown").partition("-")
    tree = f"{commit[:12]}{' and changes' if is_dirty else ''}, {run.get('kernel', '?')}"
    others = f"{run['others']:.0%}" if "others" in run else "?"
    return (
        f"| {run['scenario']} | {run['date'][:16]}, {tree} | {run['load']:.1f} | {others} "
        f"| {run['exit_code']} | {run['took_s']:.0f} |"
    )


def _claims(runs: Sequence[Run]) -> Iterator[str]:
    """Yield what each run says of its claims that did not hold, or got no verdict."""
    for run in runs:
        failed, undecided = run.get("failed", ()), run.get("undecided", ())
        if failed or undecided:
            parts = [f"does not hold: {one}" for one in failed] + [f"no verdict: {one}" for one in undecided]
            text = f"* {run['scenario']}, {run['date'][:16]}: {'; '.join(parts)}."
            yield "\n" + textwrap.fill(text, 98, break_on_hyphens=False, subsequent_indent="  ")
