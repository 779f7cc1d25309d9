"""Put later rows of some policies into the kept table of the policy bench: bench/results/policy.json.

    python -m bench.bench_policy --traces DIR --policies POLICY... --out TABLE
    python -m bench.policy_rows TABLE POLICY...

For a change that concerns these policies alone.  What they are measured against stays as it was kept, if the
later run says the same of the controls.  The record says of which commit the new rows are.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.bench_policy import CONTROLS
from bench.policy_notes import beaten
from bench.record import write_atomically

KEPT = Path(__file__).parent / "results/policy.json"
Row = dict[str, Any]
Name = tuple[str, ...]


def name_of(row: Mapping[str, Any]) -> Name:
    """Return what tells rows apart."""
    return tuple(row[part] for part in ("host", "mix", "policy", "source"))


def check(kept: Mapping[str, Any], later: Mapping[str, Any]) -> None:
    """Raise ValueError where the tables do not go together."""
    if later["failed"] or not later["record"]["commit"] or later["record"]["commit"].endswith("-dirty"):
        raise ValueError("a part of the later run failed, or its tree was not a commit")
    if later["sampled"] != kept["sampled"]:
        raise ValueError(f"the later run has {later['sampled']}, the kept one {kept['sampled']}")
    known = {name_of(row): row["run_time_s"] for row in kept["rows"]}
    for row in later["rows"]:
        before_s = known.get(name_of(row), math.nan)
        if row["policy"] in CONTROLS and not math.isclose(before_s, row["run_time_s"]):
            raise ValueError(f"{' '.join(name_of(row))} takes another time than in the kept table")


def with_rows(kept: Mapping[str, Any], later: Mapping[str, Any], policies: Sequence[str]) -> dict[str, Any]:
    """Return the kept table with the later rows of these policies in the places of the old ones.

    Raises ValueError where one of the old rows has no later one.
    """
    by_name = {name_of(one): one for one in later["rows"] if one["policy"] in policies}
    old = {name_of(one) for one in kept["rows"] if one["policy"] in policies}
    if old != by_name.keys():
        raise ValueError(f"rows that only one table has: {sorted(old ^ by_name.keys())}")
    rows = [by_name.get(name_of(one), one) for one in kept["rows"]]
    when = {key: later["record"][key] for key in ("date", "commit")}
    before = [one for one in kept["record"].get("anew", ()) if not set(one["policies"]) <= set(policies)]
    anew = [*before, {"policies": list(policies), "rows": len(by_name)} | when]
    return dict(kept) | {"rows": rows, "notes": [*beaten(rows)], "record": kept["record"] | {"anew": anew}}


def main() -> None:
    """Check both tables, and keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="what bench_policy wrote")
    parser.add_argument("policies", nargs="+")
    options = parser.parse_args()
    kept, later = json.loads(KEPT.read_text()), json.loads(options.table.read_text())
    check(kept, later)
    write_atomically(KEPT, with_rows(kept, later, options.policies))


if __name__ == "__main__":
    main()
