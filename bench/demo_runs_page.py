"""How is the log of demo runs (demo_runs.py) shown?  A table of runs, and one of figures' spreads."""

import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.demo_runs import RULES, present

Run = Mapping[str, Any]
KINDS = {
    "idle": "nothing of its own",
    "busy": "a busy loop on each CPU",
    "late": "a busy loop on each CPU that begins 20 s after the demo",
}


def _guest(name: str, key: str, manager: str = "vmplace") -> Callable[[Run], float | None]:
    return lambda run: run["managers"][manager]["guests"][name][key]


def _manager(name: str, key: str) -> Callable[[Run], float | None]:
    return lambda run: run["managers"][name][key]


FIGURES: Mapping[str, Callable[[Run], float | None]] = {
    "LAR of web under vmplace": _guest("web", "lar_after"),
    "LAR of shop under vmplace": _guest("shop", "lar_after"),
    "LAR of table under vmplace": _guest("table", "lar_after"),
    "MC imbalance of span under vmplace": _guest("span", "mc_imbalance_after"),
    "MC imbalance of span under kernel balancing": _guest("span", "mc_imbalance_after", "kernel"),
    "MC imbalance of the host under nobody": _manager("none", "mc_imbalance_after"),
    "MC imbalance of the host under kernel balancing": _manager("kernel", "mc_imbalance_after"),
    "MC imbalance of the host under vmplace": _manager("vmplace", "mc_imbalance_after"),
    "emulated s under nobody": _manager("none", "emulated_run_time_s"),
    "emulated s under kernel balancing": _manager("kernel", "emulated_run_time_s"),
    "emulated s under vmplace": _manager("vmplace", "emulated_run_time_s"),
    "share of work that kernel balancing costs": _manager("kernel", "cost_share"),
    "share of work that vmplace costs": _manager("vmplace", "cost_share"),
    "the same of the guest that loses most": _manager("vmplace", "worst_guest_cost_share"),
    "s until vmplace moved a page last": _manager("vmplace", "active_s"),
}


def rendered(kept: Run) -> Iterator[str]:
    """Yield the section's lines: how runs ended, what claims were missed, and each figure's spread."""
    runs: Sequence[Run] = kept["runs"]
    yield "## Runs of the demo in a row\n"
    yield (
        "By `make demo-log`, in turns with nothing of its own beside it and with a busy loop on each CPU.\n"
        "The loops begin with the demo (*busy*), or once it has found the machine free (*late*).\n"
        "Exit codes: 0 all claims hold, 1 one does not, 5 the machine is too slow to judge, 6 the lab could\n"
        "not be built, 124 it hung.\n"
        "Spreads are of all runs that have figures, whichever their code. *Others* is the most that other\n"
        "processes used of the machine in a step, *speed* the share of their touches that guests made.\n"
        "*Retakes* are windows that were taken again, *load* is that of the minute before. By *rules* 1\n"
        "(until commit 4518daf) kernel balancing got about half of vmplace's time, and emulated s are of\n"
        "one window. By rules 1 and 2 queues came out too short on a slow machine.\n"
    )
    for kind, what in KINDS.items():
        codes = Counter(run["exit_code"] for run in runs if run["beside"] == kind)
        counted = ", ".join(f"{count} with {code}" for code, count in sorted(codes.items()))
        yield f"* Beside {what}: {codes.total()} run{'s' * (codes.total() != 1)}" + (
            f", {counted}." if counted else "."
        )
        yield from _missed([run for run in runs if run["beside"] == kind])
    yield f"\n{_in_readme(runs)}"
    yield "\n| date, commit | rules | beside | load | others | speed | exit code | s | retakes |"
    yield "|---|---|---|---|---|---|---|---|---|"
    yield from map(_row, runs)
    for run in runs:
        if why := "; ".join((*run.get("failed", ()), *filter(None, [run.get("too_slow")]))):
            yield "\n" + textwrap.fill(f"{run['date'][:16]}: {why}.", 98, break_on_hyphens=False)
    yield "\n| figure, all runs that have it | beside | runs | median | spread |\n|---|---|---|---|---|"
    yield from _spreads(runs)
    yield ""


def _in_readme(runs: Sequence[Run]) -> str:
    """Return how many of the runs README counts: a reader can find them by the column."""
    counted = present(runs)
    idle = sum(run["beside"] == "idle" for run in counted)
    words = (
        f"README counts the runs by rules {RULES}, the present ones, of commits without changes: {idle} idle,"
        f" and {len(counted) - idle} busy or late, which it calls busy."
    )
    return textwrap.fill(words, 98)


def _missed(runs: Sequence[Run]) -> Iterator[str]:
    """Yield how many claims did not come out, with a verdict and without: a load hides no failure."""
    failed = sum(len(run.get("failed", ())) for run in runs)
    undecided = [run for run in runs if run.get("undecided")]
    claims = sum(len(run["undecided"]) for run in undecided)
    if failed or undecided:
        yield (
            f"  Claims that failed: {failed}; that did not come out and got no verdict: {claims},\n"
            f"  in {len(undecided)} runs."
        )


def _row(run: Run) -> str:
    retakes = sum(manager["retakes"] for manager in run.get("managers", {}).values())
    others = f"{run['others']:.0%}" if "others" in run else "?"
    speed = f"{run['speed']:.2f}" if run.get("speed") else "?"
    commit, _, is_dirty = (run["commit"] or "unknown").partition("-")
    commit = commit[:12] + (" and changes" if is_dirty else "")
    return (
        f"| {run['date'][:16]}, {commit} | {run.get('rules', 1)} | {run['beside']} | {run['load']:.1f} "
        f"| {others} | {speed} | {run['exit_code']} | {run['took_s']:.0f} | {retakes} |"
    )


def _known(figure: Callable[[Run], float | None], run: Run) -> float | None:
    """Return the figure; None where that manager came to no end in this run."""
    try:
        return figure(run)
    except KeyError:
        return None


def _spreads(runs: Sequence[Run]) -> Iterator[str]:
    for name, figure in FIGURES.items():
        for kind in KINDS:
            found = (_known(figure, run) for run in runs if run["beside"] == kind)
            values = [value for value in found if value is not None]
            if values:
                median, low, high = (f"{of(values):.2f}" for of in (statistics.median, min, max))
                yield f"| {name} | {kind} | {len(values)} | {median} | {low} to {high} |"
