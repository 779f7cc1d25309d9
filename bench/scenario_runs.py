"""How fast are guests under each manager, in each scenario of the lab?  A log of runs.

    python -m bench.scenario_runs                       # each scenario of lab/scenarios/ once more
    python -m bench.scenario_runs crowded-node --runs 3 # this one three times more
    python -m bench.scenario_runs --fewest 5            # five runs, of what has the fewest so far

``bench/results/scenario_runs.json`` is written anew after each run, which is added at its end:

    {"record": {machine, command}, "runs": [{"scenario": NAME, "exit_code": 0, "took_s": ..., "date": ...,
     "commit": ..., "load": ..., "others": ..., "too_slow": ..., "failed": [...], "undecided": [...],
     "kernel": "kernel-HASH", "managers": {NAME: {"emulated_s", "forecast_s", "bad_pages",
     "guests": {NAME: {"emulated_s", "forecast_s"}}}}}]}

Times are emulated seconds, ``null`` for what declares no work; a forecast is the simulator's.  Exit codes are
those of ``vmplace-lab run``, and 124 is a run that hung and was ended.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.demo_runs import LAB, ended_as_by_exit, exit_code
from bench.record import provenance, write_atomically

KEPT = Path(__file__).parent / "results/scenario_runs.json"
OUT = Path("build/scenario-runs")
SCENARIOS = Path(__file__).parents[1] / "lab/scenarios"
Entry = dict[str, Any]


def names() -> list[str]:
    """Return the names of all scenarios."""
    return sorted(path.stem for path in SCENARIOS.glob("*.toml"))


def fewest(runs: Sequence[Mapping[str, Any]], count: int) -> list[str]:
    """Return the scenario of each of so many further runs, so that all have about as many."""
    had = Counter(run["scenario"] for run in runs if run.get("managers"))
    chosen = []
    for _ in range(count):
        chosen.append(min(names(), key=lambda one: had[one]))
        had[chosen[-1]] += 1
    return chosen


def times_of(one: Mapping[str, Any]) -> dict[str, float | None]:
    """Return what a guest, or all of a manager's, took and was to take."""
    return {"emulated_s": one["emulated_run_time_s"], "forecast_s": one["forecast_run_time_s"]}


def figures_of(result: Mapping[str, Any]) -> Entry:
    """Return what the log keeps of the figures of a run."""
    managers = {
        name: times_of(manager)
        | {
            "bad_pages": sum(guest["bad_pages"] for guest in manager["guests"].values()),
            "guests": {guest: times_of(its) for guest, its in manager["guests"].items()},
        }
        for name, manager in result["managers"].items()
    }
    left = [share for manager in result["managers"].values() for share in manager["machine_share"].values()]
    return {
        "others": round(1 - min(left, default=1.0), 3),
        "too_slow": result["too_slow"],
        "failed": result["failed_expectations"],
        "undecided": result["undecided"],
        "kernel": result["versions"]["kernel"],
        "managers": managers,
    }


def run_once(scenario: str, out: Path) -> Entry:
    """Run a scenario and return its entry of the log; what it printed is in ``out``."""
    record, began = provenance(), time.monotonic()
    path = out / f"{record['date'].replace(':', '')}-{scenario}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".log").open("wb") as log:
        code = exit_code([LAB, "run", scenario, "--json", str(path)], log)
    entry = {
        "scenario": scenario,
        "exit_code": code,
        "took_s": round(time.monotonic() - began, 1),
        "date": record["date"],
        "commit": record["commit"],
        "load": round(record["load"][0], 1),
    }
    return entry | (figures_of(json.loads(path.read_text())) if path.exists() else {})


def main() -> int:
    """Run what was asked for; return the largest exit code of these runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: each of lab/scenarios/")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--fewest", type=int, metavar="N", help="N runs of those with the fewest so far")
    parser.add_argument("--out", type=Path, default=OUT, help="what each run printed")
    parser.add_argument("--log", type=Path, default=KEPT)
    options = parser.parse_args()
    log = json.loads(options.log.read_text()) if options.log.exists() else {"runs": []}
    wanted = (options.scenarios or names()) * options.runs
    worst = 0
    for scenario in fewest(log["runs"], options.fewest) if options.fewest else wanted:
        with ended_as_by_exit():
            entry = run_once(scenario, options.out)
        log["runs"].append(entry)
        log["record"] = {"machine": provenance()["machine"], "command": ["make", "scenario-log"]}
        write_atomically(options.log, log)
        print(
            f"{entry['date']} {scenario}: exit code {entry['exit_code']} in {entry['took_s']} s", flush=True
        )
        worst = max(worst, entry["exit_code"])
    return worst


if __name__ == "__main__":
    sys.exit(main())
