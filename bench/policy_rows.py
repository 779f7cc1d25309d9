"""Run some policies of the kept table anew, on its mixes, and keep their rows: bench/results/policy.json.

    python -m bench.policy_rows --traces DIR POLICY...

For a change that concerns these policies and guests beside each other alone.  What they are measured against
stays as it was kept.  The record says of which commit the new rows are.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.bench_policy import MIXES, Bench, Scenario, mix_of, runs_of, scenario, worst_protected
from bench.policy_cache import ResultCache
from bench.policy_notes import beaten
from bench.record import provenance, write_atomically
from vmplace.simulate.result import SimulationResult, oracle_share, row

KEPT = Path(__file__).parent / "results/policy.json"
WINDOWS = 14
Row = dict[str, Any]


def row_anew(kept: Sequence[Row], names: Mapping[str, str], result: SimulationResult, one: Scenario) -> Row:
    """Return the row of a result, beside the kept rows of doing nothing and of the oracles."""
    beside = {
        other["policy"]: other
        for other in kept
        if (other["host"], other["mix"]) == (names["host"], names["mix"])
    }
    none, oracle = (msgspec.convert(beside[name], SimulationResult) for name in ("none", "oracle"))
    static_s, share = beside["static-oracle"]["run_time_s"], beside["oracle"]["oracle_break_even_share"]
    dearer_s = none.run_time_s - (share or 0.0) * (none.run_time_s - oracle.run_time_s)
    reported: Row = msgspec.to_builtins(row(dict(names), result, none, oracle))
    return reported | {
        "worst_protected_slowdown": worst_protected(reported | {"guests": result.guests}, none, one.specs),
        "static_share": oracle_share(none.run_time_s, result.run_time_s, static_s),
        "online_share": oracle_share(none.run_time_s, result.run_time_s, dearer_s),
    }


def with_rows(kept: Mapping[str, Any], new: Sequence[Row], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kept table with these rows in the places of the old ones."""
    key = ("host", "mix", "policy", "source")
    by_name = {tuple(one[part] for part in key): one for one in new}
    rows = [by_name.get(tuple(one[part] for part in key), one) for one in kept["rows"]]
    policies = list(dict.fromkeys(one["policy"] for one in new))
    anew = [*kept["record"].get("anew", ()), {"policies": policies, "rows": len(new)} | dict(record)]
    return dict(kept) | {"rows": rows, "notes": [*beaten(rows)], "record": kept["record"] | {"anew": anew}}


def main() -> None:
    """Run, and keep; raises ValueError where the tree is no commit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder of NAME.npz files")
    parser.add_argument("--cache", type=Path, default=Path("build/bench/cache"), help="folder of results")
    parser.add_argument("policies", nargs="+")
    options = parser.parse_args()
    record = provenance()
    if not record["commit"] or record["commit"].endswith("-dirty"):
        raise ValueError("the tree is not a commit")
    kept, bench, new = json.loads(KEPT.read_text()), Bench(ResultCache(options.cache)), []
    for host, guests in MIXES:
        one = scenario(options.traces, host, guests, WINDOWS)
        for policy, source in runs_of(one.mix, set(options.policies)):
            if policy in options.policies:
                names = {"host": host, "mix": mix_of(guests), "policy": policy, "source": source}
                new.append(row_anew(kept["rows"], names, bench.run(one, policy, source), one))
    write_atomically(KEPT, with_rows(kept, new, {key: record[key] for key in ("date", "commit")}))


if __name__ == "__main__":
    main()
