"""One file for each bench: what was measured, on which machine and commit, and which parts failed.

A bench is some named *parts*.  Each returns its figures, or yields them piece by piece; what a part had
yielded when it failed is kept.  The file is written anew after each part, in one step, so that it is whole at
any time:

    {"bench": NAME, "record": {machine, date, commit, command, load},
     "parts": {PART: {"figures": {...}, "runs": N, "took_s": [...], "spread": {...}}},
     "failed": {PART: "what happened"}}

``python -m bench.record`` prints "record" alone.

With ``--runs N`` a part is measured N times: ``figures`` are then the medians, and ``spread`` has the least
and the largest of each.  Controls are figures of the part, measured in the same run.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]
Part = Callable[[], Figures | Iterable[Figures]]
FAILED = 1
LEFT_BEHIND = ("bench/results", "docs/results.md")


def add_record_options(parser: argparse.ArgumentParser) -> None:
    """Let the parser know ``--out`` and ``--runs``."""
    parser.add_argument("--out", type=Path, help="write the record to this file, too")
    parser.add_argument("--runs", type=int, default=1, help="measure each part so many times")


def measure(bench: str, parts: Mapping[str, Part], options: argparse.Namespace) -> int:
    """Measure all parts, print the record as JSON, and return the exit code: 1 if a part failed.

    What comes from outside (KeyboardInterrupt, SystemExit) ends the bench; the file has the parts before.
    """
    record: dict[str, Any] = {"bench": bench, "record": provenance(), "parts": {}, "failed": {}}
    for name, part in parts.items():
        samples, took, why = _measured(part, options.runs)
        if samples:
            record["parts"][name] = summary(samples) | {"took_s": took}
        if why:
            record["failed"][name] = why
        if options.out:
            write_atomically(options.out, record)
    print(json.dumps(record, indent=1))
    return report_failures(bench, record["failed"])


def report_failures(bench: str, failed: Mapping[str, str]) -> int:
    """Tell on standard error which parts failed; return the exit code."""
    for name, why in failed.items():
        print(f"{bench}: part {name!r} failed: {why}", file=sys.stderr)
    return FAILED if failed else 0


def _measured(part: Part, runs: int) -> tuple[list[dict[str, Any]], list[float], str | None]:
    """Return the samples that there are, the seconds that each took, and why there are no more."""
    samples: list[dict[str, Any]] = []
    took: list[float] = []
    for _ in range(runs):
        sample: dict[str, Any] = {}
        started = time.monotonic()
        why = _fill(sample, part)
        if why:
            return samples or ([sample] if sample else []), took, why
        samples.append(sample)
        took.append(round(time.monotonic() - started, 3))
    return samples, took, None


def _fill(sample: dict[str, Any], part: Part) -> str | None:
    """Add the part's figures; return why they are not complete."""
    try:
        reported = part()
        for piece in [reported] if isinstance(reported, Mapping) else reported:
            sample.update(piece)
    except Exception as err:  # whatever it is, the other parts are of use
        traceback.print_exc()
        return f"{type(err).__name__}: {err}"
    return None


def summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return median figures, how many runs they are of, and, of several runs, their spread."""
    if len(samples) == 1:
        return {"figures": samples[0], "runs": 1}
    reported = {"figures": _joined(samples, statistics.median), "runs": len(samples)}
    return reported | {"spread": _joined(samples, lambda values: [min(values), max(values)])}


def _joined(samples: list[Any], of: Callable[[list[float]], Any]) -> Any:
    """Return the samples, alike trees of dicts, as one whose numbers are ``of`` theirs."""
    first = samples[0]
    if isinstance(first, Mapping):
        alike = [one for one in samples if isinstance(one, Mapping)]
        return {key: _joined([one[key] for one in alike if key in one], of) for key in first}
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in samples):
        return of(samples)
    return first


def provenance() -> dict[str, Any]:
    """Return what the figures are of: machine, time, commit, command line."""
    return {
        "machine": {
            "cpu": _line("/proc/cpuinfo", "model name"),
            "cpus": len(os.sched_getaffinity(0)),
            "memory": _line("/proc/meminfo", "MemTotal"),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "command": [*map(portable, sys.argv)],
        "load": os.getloadavg(),
    }


def portable(word: str) -> str:
    """Return a word of the command line, a path as from the checkout: who repeats it has another one."""
    checkout = Path(__file__).parents[1]
    return os.path.relpath(word, checkout) if Path(word).is_absolute() else word


def _line(path: str, name: str) -> str | None:
    """Return the value of "NAME: VALUE" in a file of /proc."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _commit() -> str | None:
    """Return the commit of this tree, "-dirty" behind it if files differ; None outside of a checkout.

    Results that are kept, and the page made of them, are what runs leave behind, not what they are made of.
    """
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    changed = [*git, "diff", "--quiet", "HEAD", "--", ".", *(f":(exclude){path}" for path in LEFT_BEHIND)]
    is_dirty = subprocess.run(changed, check=False).returncode != 0
    return commit.stdout.strip() + ("-dirty" if is_dirty else "")


def write_atomically(path: Path, reported: Mapping[str, Any]) -> None:
    """Write JSON so that the file is always whole: the old one, or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(reported, indent=1) + "\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


if __name__ == "__main__":
    # For a run that is no bench: printed before it begins, as the tree may change while it lasts.
    print(json.dumps(provenance()))
