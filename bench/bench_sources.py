"""What does each source of page statistics add to vmplace's plan?  A few traces: build/bench/sources.json.

    python -m bench.bench_sources --traces DIR [--windows N] [--jobs N] [--cache DIR] [--out FILE]

A subset of ``make bench-policy``: single guests on carrefour-a, the first windows only.  The controls are in
it: ``full`` is what there is to know, ``none`` and ``oracle`` are behind each share.
"""

import argparse
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.bench_policy import SINGLE_HOST, Bench, scenario
from bench.policy_cache import ResultCache
from bench.record import provenance, report_failures, write_atomically
from vmplace.simulate.result import row

TRACES = (
    "freqmine",
    "gap-cc-urand20",
    "lulesh",
    "metis-kmeans",
    "npb-is-B",
    "npb-sp-B",
    "splash-barnes",
    "streamcluster",
)
SOURCES = ("ad", "hints", "ibs", "ad+ibs", "full")
WINDOWS = 14


def main() -> int:
    """Run all, write the rows and the means, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder of NAME.npz files")
    parser.add_argument("--windows", type=int, default=WINDOWS, help="at most so many of each trace")
    parser.add_argument("--only", nargs="*", default=TRACES, help="these traces")
    parser.add_argument("--jobs", type=int, default=1, help="so many traces at a time")
    parser.add_argument("--cache", type=Path, default=Path("build/bench/cache"), help="folder of results")
    parser.add_argument("--out", type=Path, default=Path("build/bench/sources.json"))
    options = parser.parse_args()
    work = partial(rows_of, Bench(ResultCache(options.cache)), options.traces, options.windows)
    reported: dict[str, Any] = {
        "subset": f"{len(options.only)} traces, {options.windows} windows",
        "record": provenance(),
        "rows": [],
        "failed": {},
    }
    with ProcessPoolExecutor(options.jobs) as pool:
        running = {pool.submit(work, trace): trace for trace in options.only}
        for done, trace in running.items():
            note(reported, trace, done)
            write_atomically(options.out, msgspec.to_builtins(reported))
    print(table(reported["rows"]))
    return report_failures("sources", reported["failed"])


def note(reported: dict[str, Any], trace: str, done: Future[list[dict[str, Any]]]) -> None:
    """Add the rows of a trace to the report, or why there are none."""
    try:
        reported["rows"] += done.result()
    except Exception as err:  # whatever it is, the other traces are of use
        reported["failed"][trace] = f"{type(err).__name__}: {err}"
    reported["mean"] = means(reported["rows"])


def rows_of(bench: Bench, folder: Path, windows: int, trace: str) -> list[dict[str, Any]]:
    """Return the rows of one trace."""
    one = scenario(folder, SINGLE_HOST, (trace,), windows)
    none, oracle = bench.run(one, "none", "full"), bench.run(one, "oracle", "full")
    names = {"host": one.host.name, "mix": one.mix, "policy": "vmplace"}
    return [
        row(names | {"source": source}, bench.run(one, "vmplace", source), none, oracle) for source in SOURCES
    ]


def means(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return each source's mean share of the oracle's gain, of the traces where there is one."""
    shares = {name: [one["oracle_share"] for one in rows if one["source"] == name] for name in SOURCES}
    known = {name: [share for share in some if share is not None] for name, some in shares.items()}
    return {name: float(np.mean(some)) if some else None for name, some in known.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the shares for a person."""
    shares = {(one["mix"], one["source"]): one["oracle_share"] for one in rows}
    lines = [f"{'trace':16}" + "".join(f"{source:>14}" for source in SOURCES)]
    for mix in dict.fromkeys(one["mix"] for one in rows):
        lines.append(f"{mix:16}" + "".join(_cell(shares[mix, source]) for source in SOURCES))
    return "\n".join([*lines, f"{'mean':16}" + "".join(map(_cell, means(rows).values()))])


def _cell(share: float | None) -> str:
    return f"{'-' if share is None else format(share, '.3f'):>14}"


if __name__ == "__main__":
    sys.exit(main())
